/* A shared file system, for one process and its children: below directories that are named "shared", calls fail or lie
   as on NFS, Lustre, SMB and buckets that are mounted in user space.

   LD_PRELOAD loads it. `set_faults`, and FAULTS in the environment of a new process, have rules "CALL ERRNO SKIP TIMES;":
   after so many calls, this call fails with this error so many times (-1: always). A call whose name ends in "_lie" does
   something else than it says, see below. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RULES = 8, KNOWN = 16, NFS = 0x6969 };

static struct rule { char call[24]; int code; atomic_int skip, times; } rules[RULES];
static struct { char path[PATH_MAX]; int result; struct stat status; } known[KNOWN];  /* the cache of `stat_lie` */
static int rule_count, known_count;

#define ORIGINAL(result, name, ...) \
    static result (*original)(__VA_ARGS__); \
    if (!original) original = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

void set_faults(const char *text) {
    rule_count = known_count = 0;
    for (int used, skip, times; rule_count < RULES; text += used) {
        struct rule *rule = &rules[rule_count];
        if (sscanf(text, "%23s %d %d %d;%n", rule->call, &rule->code, &skip, &times, &used) != 4) return;
        atomic_store(&rule->skip, skip);
        atomic_store(&rule->times, times);
        rule_count++;
    }
}

__attribute__((constructor)) static void set_first_faults(void) {
    const char *text = getenv("FAULTS");
    if (text) set_faults(text);
}

static int is_shared(const char *path) {
    for (const char *found = path; (found = strstr(found, "/shared")); found++) {
        if (found[7] == '/' || !found[7]) return 1;
    }
    return 0;
}

/* Return whether a rule applies to a call now, with errno as it says. */
static int applies(const char *call, const char *path) {
    if (!is_shared(path)) return 0;
    for (int i = 0; i < rule_count; i++) {
        if (strcmp(rules[i].call, call)) continue;
        if (atomic_fetch_sub(&rules[i].skip, 1) > 0) continue;
        int left = atomic_load(&rules[i].times);
        while (left > 0 && !atomic_compare_exchange_weak(&rules[i].times, &left, left - 1)) {}
        if (!left) continue;
        errno = rules[i].code;
        return 1;
    }
    return 0;
}

static int applies_to_file(const char *call, int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = rule_count ? readlink(link, path, sizeof path - 1) : -1;
    if (size < 0) return 0;
    path[size] = 0;
    return applies(call, path);
}

int statfs(const char *path, struct statfs *status) {
    ORIGINAL(int, "statfs", const char *, struct statfs *);
    int result = original(path, status);
    if (!result && is_shared(path)) status->f_type = NFS;
    return result;
}

/* With "open_lie", a file that exists can be created. */
int open64(const char *path, int flags, ...) {
    ORIGINAL(int, "open64", const char *, int, ...);
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (flags & O_EXCL && applies("open_lie", path)) flags &= ~O_EXCL;
    return applies("open", path) ? -1 : original(path, flags, mode);
}

DIR *opendir(const char *path) {
    ORIGINAL(DIR *, "opendir", const char *);
    return applies("opendir", path) ? NULL : original(path);
}

ssize_t read(int file, void *data, size_t size) {
    ORIGINAL(ssize_t, "read", int, void *, size_t);
    return applies_to_file("read", file) ? -1 : original(file, data, size);
}

ssize_t preadv64(int file, const struct iovec *parts, int count, off_t offset) {
    ORIGINAL(ssize_t, "preadv64", int, const struct iovec *, int, off_t);
    return applies_to_file("read", file) ? -1 : original(file, parts, count, offset);
}

ssize_t preadv64v2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    ORIGINAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off_t, int);
    return applies_to_file("read", file) ? -1 : original(file, parts, count, offset, flags);
}

int fsync(int file) {
    ORIGINAL(int, "fsync", int);
    struct stat status;
    int is_directory = !fstat(file, &status) && S_ISDIR(status.st_mode);
    return applies_to_file(is_directory ? "fsync_directory" : "fsync", file) ? -1 : original(file);
}

/* Only of files that are open for writing: late errors are about what was written. */
int close(int file) {
    ORIGINAL(int, "close", int);
    int fails = (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY && applies_to_file("close", file), code = errno;
    int result = original(file);
    if (fails) errno = code;
    return fails ? -1 : result;
}

/* With "link_lie" and "rename_lie", the server has done it, and says that it has not. */
int link(const char *old, const char *new) {
    ORIGINAL(int, "link", const char *, const char *);
    if (applies("link", new)) return -1;
    int result = original(old, new);
    return !result && applies("link_lie", new) ? -1 : result;
}

int rename(const char *old, const char *new) {
    ORIGINAL(int, "rename", const char *, const char *);
    if (applies("rename", new)) return -1;
    int result = original(old, new);
    return !result && applies("rename_lie", new) ? -1 : result;
}

int renameat2(int old_folder, const char *old, int new_folder, const char *new, unsigned flags) {
    ORIGINAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    return applies("renameat2", new) ? -1 : original(old_folder, old, new_folder, new, flags);
}

/* With "flock_lie", every process gets every lock. */
int flock(int file, int operation) {
    ORIGINAL(int, "flock", int, int);
    if (applies_to_file("flock_lie", file)) return 0;
    return applies_to_file("flock", file) ? -1 : original(file, operation);
}

/* With "stat_lie", a path keeps the attributes that it had when this client looked first, or does not exist. */
static int stat_known(const char *path, struct stat *status, int (*original)(const char *, struct stat *)) {
    if (!applies("stat_lie", path)) return applies("stat", path) ? -1 : original(path, status);
    int place = 0;
    while (place < known_count && strcmp(known[place].path, path)) place++;
    if (place == known_count && known_count < KNOWN) {
        known_count++;
        snprintf(known[place].path, PATH_MAX, "%s", path);
        known[place].result = original(path, &known[place].status);
    }
    if (place == KNOWN) return original(path, status);
    *status = known[place].status;
    if (known[place].result) errno = ENOENT;
    return known[place].result;
}

int stat64(const char *path, struct stat64 *status) {
    ORIGINAL(int, "stat64", const char *, struct stat *);
    return stat_known(path, (struct stat *)status, original);
}

/* With "unlink_lie", the server keeps the file under another name, as NFS does while it is open. */
int unlink(const char *path) {
    ORIGINAL(int, "unlink", const char *);
    char kept[PATH_MAX];
    static atomic_int number;
    if (!applies("unlink_lie", path)) return original(path);
    snprintf(kept, sizeof kept, "%.*s/.nfs%016x", (int)(strrchr(path, '/') - path), path, atomic_fetch_add(&number, 1));
    return renameat(AT_FDCWD, path, AT_FDCWD, kept);
}
