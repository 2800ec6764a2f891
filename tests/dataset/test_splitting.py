from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import shardflow as sf
from shardflow.dataset.splitting import _folds, _Samples, _stratified
from shardflow.errors import ConfigError, DatasetExistsError, IntegrityError
from shardflow.order import keyed_rng
from tests.helpers.command import exit_code, run
from tests.helpers.crashes import INSTRUMENT
from tests.helpers.examples import examples
from tests.helpers.folders import contents, photo, write_tree
from tests.helpers.making import jpeg, make_dataset, write_dataset


def by_key(dataset: Path, values: Iterable[Any]) -> dict[str, Any]:
    """Return these values by the keys of the training samples, which a dataset without receipts takes as paths."""
    return dict(zip((sample["__key__"] for sample in sf.open(dataset)["train"]), values, strict=True))


def dataset_with_classes(root: Path, sizes: list[int]) -> Path:
    """Write a dataset of two shards with these numbers of samples per class."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    samples = [(f"{n:05}", {"jpg": jpeg(n), "cls": b"%d" % label}) for n, label in enumerate(labels)]
    half = len(samples) // 2
    names = tuple(f"class{label}" for label in range(len(sizes)))
    return write_dataset(root, {"train": [samples[:half], samples[half:]]}, classes=names)


def test_every_class_gives_its_share(tmp_path: Path) -> None:
    """A quarter of each class, and of all samples, is held out; each sample is in exactly one split."""
    dataset = dataset_with_classes(tmp_path / "set", [40, 20, 10, 6])
    report = sf.split(dataset, tmp_path / "virtual", val=0.25)
    assert report.samples == {"train": 57, "val": 19}
    virtual = sf.open(tmp_path / "virtual")
    counts = Counter(int(sample["cls"]) for sample in virtual["val"])
    assert (counts[0], counts[1]) == (10, 5)
    assert counts[2] in (2, 3)
    assert counts[3] in (1, 2)
    found = [sample["__key__"] for split in virtual.values() for sample in split]
    assert sorted(found) == [f"{n:05}" for n in range(76)]
    assert sf.verify(tmp_path / "virtual") == []
    sf.split(dataset, tmp_path / "again", val=0.25)
    assert sf.open(tmp_path / "again").fingerprint == virtual.fingerprint
    sf.split(dataset, tmp_path / "other", val=0.25, seed=1)
    assert sf.open(tmp_path / "other").fingerprint != virtual.fingerprint


def test_folds_are_disjoint_and_even(tmp_path: Path) -> None:
    """Each sample is held out in exactly one fold; folds are even to one, as a whole and in each class."""
    dataset = dataset_with_classes(tmp_path / "set", [23, 12, 7, 3, 1])
    reports = sf.split_folds(dataset, tmp_path / "folds", folds=4)
    folds = [sf.open(tmp_path / f"folds/fold{number}") for number in range(4)]
    assert [fold.fingerprint for fold in folds] == [report.fingerprint for report in reports.values()]
    held_out = [[sample["__key__"] for sample in fold["val"]] for fold in folds]
    everything = [f"{n:05}" for n in range(46)]
    assert sorted(key for keys in held_out for key in keys) == everything
    for fold, keys in zip(folds, held_out, strict=True):
        assert sorted([*keys, *(sample["__key__"] for sample in fold["train"])]) == everything
    assert {len(keys) for keys in held_out} <= {11, 12}
    for label, size in enumerate([23, 12, 7, 3, 1]):
        counts = [sum(int(sample["cls"]) == label for sample in fold["val"]) for fold in folds]
        assert sum(counts) == size
        assert max(counts) - min(counts) <= 1
    again = sf.split_folds(dataset, tmp_path / "again", folds=4)
    assert again == reports
    assert reports["fold0"].classes["val"]["class0"] in (5, 6)


def in_val(path: Path) -> set[str]:
    """The keys of the samples that are held out."""
    return {sample["__key__"] for sample in sf.open(path)["val"]}


@pytest.mark.parametrize("folds", [2, 3, 5, 40])
def test_copies_of_an_image_share_a_fold(tmp_path: Path, folds: int) -> None:
    """Copies of one image are validated together, within a class and across classes, and folds stay even."""
    images = [*(n // 4 for n in range(80)), *(n // 2 for n in range(80)), *range(100, 140)]
    samples = [(f"{n:03}", {"jpg": jpeg(image), "cls": b"%d" % (n // 80)}) for n, image in enumerate(images)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples[:90], samples[90:]]}, classes=("x", "y", "z"))
    sf.split_folds(dataset, tmp_path / "folds", folds=folds)
    held_out = [in_val(tmp_path / f"folds/fold{n}") for n in range(folds)]
    assert sorted(key for keys in held_out for key in keys) == [key for key, _ in samples]
    assert sum(len({images[int(key)] for key in keys}) for keys in held_out) == len(set(images))
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 6
    sf.split(dataset, tmp_path / "val", val=0.2)
    held = in_val(tmp_path / "val")
    assert not {images[int(key)] for key in held} & {images[n] for n in range(200) if f"{n:03}" not in held}
    assert len(held) == 40


PATIENTS = ["a", "b", "c", "d", None, "", 7, 7.5, True, ["x", 1], {"ward": 3}]


def dataset_with_patients(root: Path) -> tuple[Path, list[str]]:
    """Write a dataset with patients in the samples' `.json`; a name for the group of each sample."""
    samples, names = [], list[str]()
    for n in range(110):
        patient = PATIENTS[n * 7 % 11] if n < 88 else f"p{n // 2}"
        content = json.dumps({"camera": n % 3, "patient": patient}).encode()
        samples.append((f"{n:03}", {"jpg": jpeg(n), "cls": b"%d" % (n % 2), "json": content}))
        names.append(f"alone {n}" if patient in (None, "") else repr(patient))
    return write_dataset(root, {"train": [samples[:50], samples[50:]]}, classes=("x", "y")), names


def test_samples_with_one_value_of_a_field_stay_together(tmp_path: Path) -> None:
    """With `group`, no patient is in train and val; samples without one are by themselves; values may be given too."""
    dataset, patients = dataset_with_patients(tmp_path / "set")
    read: list[object] = []
    report = sf.split(dataset, tmp_path / "val", val=0.3, group="patient", progress=read.append)
    held = in_val(tmp_path / "val")
    assert abs(report.samples["val"] - 33) <= 4
    assert not {patients[int(key)] for key in held} & {patients[n] for n in range(110) if f"{n:03}" not in held}
    assert len(read) == 4
    folds = sf.split_folds(dataset, tmp_path / "folds", folds=4, group="patient")
    held_out = [{patients[int(key)] for key in in_val(tmp_path / f"folds/fold{n}")} for n in range(4)]
    assert sum(map(len, held_out)) == len(set(patients))
    given = sf.split_folds(dataset, tmp_path / "given", folds=4, group=by_key(dataset, patients))
    array = sf.split_folds(
        dataset, tmp_path / "array", folds=4, group=by_key(dataset, np.unique(patients, return_inverse=True)[1])
    )
    assert folds == given == array
    assert sf.split_folds(dataset, tmp_path / "other", folds=4, group=by_key(dataset, patients), seed=1) != given


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda groups: [*torch.tensor(groups)]])
def test_groups_are_arrays_of_any_library(tmp_path: Path, make: Callable[[list[int]], Any]) -> None:
    """Equal numbers are one group, in whatever they come: an array, a tensor, a list of tensors."""
    dataset = make_dataset(tmp_path / "set", [60])
    groups = [n // 6 for n in range(60)]
    expected = sf.split(dataset, tmp_path / "list", val=0.2, group=by_key(dataset, groups))
    assert sf.split(dataset, tmp_path / "made", val=0.2, group=by_key(dataset, make(groups))) == expected
    assert len({groups[int(key)] for key in in_val(tmp_path / "made")}) == 2


def test_a_number_and_its_text_are_one_group(tmp_path: Path) -> None:
    """A patient who is 7 in one row, "7" in another and 7.0 in a third is in one part."""
    dataset = make_dataset(tmp_path / "set", [60])
    groups = [(int, str, float, np.int64)[n % 4](n // 6) for n in range(60)]
    expected = sf.split(dataset, tmp_path / "numbers", val=0.2, group=by_key(dataset, (n // 6 for n in range(60))))
    assert sf.split(dataset, tmp_path / "mixed", val=0.2, group=by_key(dataset, groups)) == expected


@pytest.mark.parametrize("missing", [None, "", math.nan, np.float32("nan"), np.datetime64("NaT"), "NaT", "NA"])
def test_samples_without_a_group_are_alone(tmp_path: Path, missing: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Samples whose value is missing, as any library says it, are no group."""
    if missing in ("NaT", "NA"):
        missing = getattr(pytest.importorskip("pandas"), missing)
    dataset = make_dataset(tmp_path / "set", [10], labelled=False)
    report = sf.split(dataset, tmp_path / "val", val=0.2, group=by_key(dataset, ["a"] * 4 + [missing] * 6))
    assert "6 samples of split 'train' without a value of the group: each is a group with its copies" in caplog.text
    assert report.samples == {"train": 8, "val": 2}


def test_groups_with_a_copy_in_common_are_one(tmp_path: Path) -> None:
    """Patients that share an image are together, and those that share one with these."""
    images = [0, 1, 1, 2, 2, 3, *range(10, 40)]
    patients = ["a", "a", "b", "b", "c", "c", *range(30)]
    samples = [(f"{n:03}", {"jpg": jpeg(image)}) for n, image in enumerate(images)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]})
    for seed in range(5):
        sf.split(dataset, tmp_path / f"{seed}", val=0.5, group=by_key(dataset, patients), seed=seed)
        assert len(in_val(tmp_path / f"{seed}") & {f"{n:03}" for n in range(6)}) in (0, 6)


def test_values_for_two_images_of_one_path(tmp_path: Path) -> None:
    """If two samples have a path, a value by path is refused; values by key and by path together are taken."""
    for name in ("old", "new"):
        write_tree(tmp_path / name, {f"{number}.jpg": photo(number + 9 * (name == "new")) for number in range(4)})
    (tmp_path / "new/3.jpg").rename(tmp_path / "new/4.jpg")
    sf.pack(tmp_path / "old", tmp_path / "set", short_side=16, executor="serial")
    sf.extend(tmp_path / "new", tmp_path / "set", executor="serial", on_conflict="add")
    folds: dict[str, int] = {f"{number}.jpg": -1 for number in range(5)}
    with pytest.raises(
        ConfigError, match=r"folds: 2 samples of split 'train' have the source '\d.jpg'; give each .* 'train:"
    ):
        sf.split_folds(tmp_path / "set", tmp_path / "folds", folds=folds)
    split = sf.open(tmp_path / "set")["train"]
    folds |= {
        f"train:{number:09}": 0 if number > 3 else -1 for number in range(len(split)) if split.source(number)[0] < "3"
    }
    sf.split_folds(tmp_path / "set", tmp_path / "folds", folds={**folds, "4.jpg": 0})
    assert sorted(sf.open(tmp_path / "folds/fold0")["val"].sources()) == ["0.jpg", "1.jpg", "2.jpg", "4.jpg"]


def test_groups_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A field that a sample lacks, a wrong number of values, and groups that leave nothing are errors that say so."""
    dataset, patients = dataset_with_patients(tmp_path / "set")
    for group, message in (
        ("person", r"sample 000 has no field 'person' in its .json, which has 'camera', 'patient'; add it with"),
        ("patients", r"which has 'camera', 'patient' \(did you mean 'patient'\?\)"),
        (
            {"000": "a"},
            "group does not have each sample of split 'train' once: 109 of 110 lack a value, such as '001'; a",
        ),
        (patients, "group is of type list: give the name of a field, or a value for each path or id"),
        (5, "group is of type int: give the name of a field"),
        (by_key(dataset, [np.zeros(2)] * 110), "a group is named by a text or a number"),
        (by_key(dataset, torch.zeros(110, 1)), "a group is named by a text or a number"),
        (by_key(dataset, ["a"] * 110), "leaves train or val empty, as the largest group has 110 samples"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.split(dataset, tmp_path / "val", group=group)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"110.*3.*4"):
        sf.split_folds(dataset, tmp_path / "folds", folds=4, group=by_key(dataset, (n % 3 for n in range(110))))
    damaged = write_dataset(tmp_path / "damaged", {"train": [[("0", {"jpg": jpeg(0), "json": b"{"})]]})
    with pytest.raises(IntegrityError, match=r"000000\.tar,.*0:.*'json'.*JSON"):
        sf.split(damaged, tmp_path / "val", group="patient")
    assert not list(tmp_path.glob("val*"))
    assert not caplog.records
    large = by_key(dataset, ["a"] * 50 + [*map(str, range(60))])
    sf.split(dataset, tmp_path / "large", group=large)
    sf.split_folds(dataset, tmp_path / "uneven", folds=3, group=large)
    assert [record.getMessage() for record in caplog.records] == [
        "the group of training sample 0 has 50 samples, more than the 11 of val=0.1: val has 11",
        "the group of training sample 0 has 50 samples, more than the 37 of an even fold: the largest has 50",
    ]


@st.composite
def samples_in_groups(draw: st.DrawFn) -> _Samples:
    """Any samples in classes and groups; some groups are large, or have several classes."""
    sizes = draw(st.lists(st.integers(1, 3) | st.integers(1, 30), min_size=1, max_size=60))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    classes = np.array(draw(st.lists(st.integers(-1, 3), min_size=len(groups), max_size=len(groups))))
    if draw(st.booleans()):
        classes = classes[groups]
    hashes = keyed_rng.fold_array(draw(st.integers(0, 2**64 - 1)), np.arange(len(groups)))
    return _Samples(classes, hashes, groups)


@given(samples_in_groups(), st.integers(2, 9))
@examples(100)
def test_no_group_crosses_folds(samples: _Samples, folds: int) -> None:
    """Each group is in one fold, no fold is empty, and folds differ by no more than the largest group or two."""
    assume(samples.groups[-1] + 1 >= folds)
    fold_of = _folds(samples, folds)
    pairs = np.unique(np.stack([samples.groups, fold_of]), axis=1)
    assert pairs.shape[1] == samples.groups[-1] + 1
    counts = np.bincount(fold_of, minlength=folds)
    assert counts.min() > 0
    assert len(counts) == folds
    sizes = np.bincount(samples.groups)
    assert counts.max() - counts.min() <= 2 * sizes.max()
    again = np.random.default_rng(0).permutation(len(fold_of))
    assert np.array_equal(_folds(_Samples(*(each[again] for each in samples)), folds), fold_of[again])


@given(samples_in_groups(), st.floats(0.02, 0.9))
@examples(100)
def test_no_group_crosses_train_and_val(samples: _Samples, share: float) -> None:
    """Each group is in train or in val, and val has its share to a group; with groups of one, to a sample."""
    held_out = _stratified(samples, share, 0)
    assert len(np.unique(np.stack([samples.groups, held_out]), axis=1).T) == samples.groups[-1] + 1
    sizes = np.bincount(samples.groups)
    assert abs(held_out.sum() - share * len(held_out)) <= (sizes.max() if sizes.max() > 1 else 0.5)
    alone = samples._replace(groups=np.arange(len(held_out)))
    held_out = _stratified(alone, share, 0)
    assert held_out.sum() == round(share * len(held_out))
    for name in np.unique(samples.classes):
        here = samples.classes == name
        assert abs(held_out[here].sum() - share * here.sum()) < 1


def test_each_seed_holds_out_other_groups() -> None:
    """Groups of any size are held out by some seeds, about as often as their share says."""
    sizes = np.arange(1, 61)
    groups = np.repeat(np.arange(60), sizes)
    found = np.zeros(60)
    for seed in range(200):
        hashes = keyed_rng.fold_array(seed, np.arange(len(groups)))
        held_out = _stratified(_Samples(np.zeros_like(groups), hashes, groups), 0.2, seed)
        assert abs(held_out.mean() - 0.2) < 0.01
        found += np.bincount(groups[held_out], minlength=60) > 0
    for sizes_from, sizes_to in ((1, 16), (16, 32), (32, 60)):
        assert 0.12 < found[sizes_from:sizes_to].mean() / 200 < 0.28


@pytest.mark.parametrize(
    "point",
    [
        "parent before link dst/fold0/shardflow.json #1",
        "parent after link dst/fold0/shardflow.json #1",
        "parent after unlink dst/fold0/.tmp-shardflow.json.* #1",
        "parent half write dst/fold1/train/0/train/.tmp-000000.npy.* #1",
        "parent after link dst/fold2/shardflow.json #1",
    ],
)
def test_folds_that_were_stopped_go_on(tmp_path: Path, point: str) -> None:
    """After a kill, the same call accepts the folds that are there, makes the others, and leaves nothing else."""
    dataset = make_dataset(tmp_path / "set", [12, 9])
    folds, fired = tmp_path / "folds", tmp_path / "fired"
    plan = {"roots": {str(folds): "dst"}, "kill": point, "fired": str(fired)}
    path = os.pathsep.join([str(INSTRUMENT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run("split", dataset, folds, "--folds", 3, env={**os.environ, "PYTHONPATH": path, "FIRE": json.dumps(plan)})
    assert fired.exists()
    reports = sf.split_folds(dataset, folds, folds=3)
    assert reports == sf.split_folds(dataset, folds, folds=3)
    assert [report.fingerprint for report in reports.values()] == [
        sf.open(folds / f"fold{n}").fingerprint for n in range(3)
    ]
    sf.split_folds(dataset, tmp_path / "whole", folds=3)
    assert contents(folds) == contents(tmp_path / "whole")


def test_folds_of_another_call_are_kept(tmp_path: Path) -> None:
    """Where a fold holds another dataset, or the same one over other tars, nothing is written."""
    dataset = make_dataset(tmp_path / "set", [12, 9])
    sf.split_folds(dataset, tmp_path / "folds", folds=3, seed=1)
    shutil.rmtree(tmp_path / "folds/fold0")
    before = contents(tmp_path / "folds")
    for source, seed in ((dataset, 0), (shutil.copytree(dataset, tmp_path / "copy"), 1)):
        with pytest.raises(DatasetExistsError, match="fold1 already"):
            sf.split_folds(source, tmp_path / "folds", folds=3, seed=seed)
        assert contents(tmp_path / "folds") == before


@pytest.mark.parametrize(("folds", "message"), [(1, "folds must be 2 or more"), (5, "cannot be split into 5 folds")])
def test_folds_that_cannot_be(tmp_path: Path, folds: int, message: str) -> None:
    """One fold, and more folds than samples, are refused."""
    dataset = make_dataset(tmp_path / "set", [4])
    with pytest.raises(ConfigError, match=message):
        sf.split_folds(dataset, tmp_path / "folds", folds=folds)


def test_given_folds_are_kept(tmp_path: Path) -> None:
    """Folds that a field or a dict names are the folds, by their names; each sample is in `val` of its own alone."""
    given = [n * 7 % 3 + 1 for n in range(20)]
    samples = [(f"{n:03}", {"jpg": jpeg(n), "json": b'{"fold": %d}' % given[n]}) for n in range(20)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples[:9], samples[9:]]})
    assert exit_code("split", str(dataset), str(tmp_path / "field"), "--folds", "fold") == 0
    reports = sf.split_folds(dataset, tmp_path / "list", folds=by_key(dataset, map(str, given)))
    assert [*reports] == ["fold1", "fold2", "fold3"]
    assert (
        sf.split_folds(dataset, tmp_path / "floats", folds=by_key(dataset, (f"{fold}.0" for fold in given))).keys()
        == reports.keys()
    )
    for name, report in reports.items():
        assert in_val(tmp_path / "list" / name) == {f"{n:03}" for n in range(20) if f"fold{given[n]}" == name}
        assert in_val(tmp_path / "field" / name) == in_val(tmp_path / "list" / name)
        assert sum(report.samples.values()) == 20
    never = sf.split_folds(
        dataset, tmp_path / "never", folds=by_key(dataset, (fold - 2 for fold in given))
    )  # -1, 0 and 1
    assert [*never] == ["fold0", "fold1"]
    for fold in (0, 1):
        held_out = {f"{n:03}" for n in range(20) if given[n] - 2 == fold}
        assert in_val(tmp_path / f"never/fold{fold}") == held_out
        assert never[f"fold{fold}"].samples == {"train": 20 - len(held_out), "val": len(held_out)}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table of 40 images by id, with patients, packed in another order to `set`."""
    rows = [{"id": f"im{n}", "patient": n * 7 % 9, "fold": n * 7 % 9 % 2} for n in range(40)]
    for n, row in enumerate(rows):
        (tmp_path / f"{row['id']}.jpg").write_bytes(jpeg(n))
    found = pd.DataFrame(rows)
    found.to_csv(tmp_path / "t.csv", index=False)
    source = sf.sources.Table(tmp_path / "t.csv", image="id", images=tmp_path)
    sf.pack(source, tmp_path / "set", short_side=16, executor="serial", shard_samples=15)
    return found


def test_a_series_comes_by_its_index(table: Any, tmp_path: Path) -> None:
    """Values of pandas are those of the ids or paths in the index; without these the order is unknown, and refused."""
    dataset = tmp_path / "set"
    expected = sf.split_folds(dataset, tmp_path / "field", folds=3, group="patient")
    by_id = table.set_index("id").patient
    by_path = by_id.rename(lambda name: f"{name}.jpg")
    ordered = by_path.loc[sf.open(dataset)["train"].sources()]
    for name, group in {"id": by_id, "path": by_path, "ordered": ordered, "dict": ordered.to_dict()}.items():
        assert sf.split_folds(dataset, tmp_path / name, folds=3, group=group) == expected
    mixed = pd.concat([by_id.iloc[:9], by_path.iloc[9:]])
    assert sf.split_folds(dataset, tmp_path / "mixed", folds=3, group=mixed) == expected
    for other, wrong in (
        (table.patient, r"40 of 40 lack a value, such as 'im\d+.jpg'"),
        (by_id.iloc[1:], f"1 of 40 lack a value, such as '{by_id.index[0]}.jpg'"),
        (pd.concat([by_id, by_id.iloc[:1]]), f"'{by_id.index[0]}' repeats"),
    ):
        with pytest.raises(ConfigError, match=rf"group does not have .* once: {wrong}; a Series, which has the order"):
            sf.split_folds(dataset, tmp_path / "other", folds=3, group=other)
    for values in (table.patient.tolist(), table.fold.to_numpy(), torch.tensor(table.fold), range(40)):
        for refused in ({"folds": values}, {"folds": 3, "group": values}):
            with pytest.raises(ConfigError, match="values of a list or array could be in the order of a table or of"):
                sf.split_folds(dataset, tmp_path / "other", **refused)
    weights = table.set_index("id").patient * 1.0
    sampler = sf.samplers.Weighted(weights)
    loader = sf.Loader(dataset, batch_size=1, sampler=sampler, num_workers=0, fields=("index",), tail="short")
    patients = [int(json.loads(sample["json"])["patient"]) for sample in sf.open(dataset)["train"]]
    drawn = Counter(int(index) for (index,) in loader)
    assert [drawn[number] for number in range(40)] == patients
    with pytest.raises(ConfigError, match="Series"):
        sf.Loader(dataset, batch_size=1, sampler=sf.samplers.Weighted(table.patient), num_workers=0)
    sf.Loader(dataset, batch_size=1, sampler=sf.samplers.Weighted(pd.Index([1.0] * 40)), num_workers=0)  # an array


def test_a_subset_by_a_series(table: Any, tmp_path: Path) -> None:
    """True and False by id select these samples; numbers and masks in the order of the table are refused."""
    dataset, of_table = tmp_path / "set", table.set_index("id").patient
    options = {"batch_size": 1, "num_workers": 0, "shuffle": False, "tail": "short", "fields": ("index",)}
    loader = sf.Loader(dataset, sampler=sf.samplers.Subset(of_table >= 4), **options)
    sources = [Path(name).stem for name in sf.open(dataset)["train"].sources()]
    assert [sources[int(index)] for (index,) in loader] == [name for name in sources if of_table[name] >= 4]
    with pytest.raises(ConfigError, match="a Series, which has the order of its table"):
        sf.Loader(dataset, sampler=sf.samplers.Subset(table.patient >= 4), **options)
    for wrong in (table[table.patient >= 4].index, table.patient):
        with pytest.raises(ConfigError, match=r"Series of True and False by id or path, found"):
            sf.samplers.Subset(wrong)
    rows = np.flatnonzero(table.patient >= 4)
    for ambiguous in ((table.patient >= 4).to_numpy(), rows, rows.tolist()):
        with pytest.raises(ConfigError, match=r"for rows of a table write Subset\(pd.Series\(np.isin"):
            sf.samplers.Subset(ambiguous)
    by_row = sf.samplers.Subset(pd.Series(np.isin(range(len(table)), rows), index=table["id"]))
    by_id = sf.Loader(dataset, sampler=sf.samplers.Subset(of_table >= 4), **options)
    assert [*sf.Loader(dataset, sampler=by_row, **options)] == [*by_id]
    with pytest.raises(ConfigError, match="or index=, found both"):
        sf.samplers.Subset("class = 'x'", index=[1])


def test_keys_that_are_names_of_other_files_are_refused(tmp_path: Path) -> None:
    """File names of nine digits look like the keys of `pack`: without the split, the wrong samples would be meant."""
    names = [f"{number:09}" for number in range(12)]
    write_tree(tmp_path / "src", {f"{name}.jpg": jpeg(number) for number, name in enumerate(names)})
    dataset = tmp_path / "set"
    sf.pack(tmp_path / "src", dataset, short_side=16, executor="serial")
    values = pd.DataFrame({"name": names, "score": range(12)})
    for refused in (
        lambda: sf.remove(dataset, keys=names[:5]),
        lambda: sf.subset(dataset, tmp_path / "some", keys=names[:5]),
        lambda: sf.columns.add(dataset, values, key="name"),
    ):
        with pytest.raises(ConfigError, match=r"file names look like keys here; write 'train:0000000"):
            refused()
    assert sf.remove(dataset, keys=["train:000000003"]).removed == {"train": 1}


def test_an_added_column_has_groups_and_folds(table: Any, tmp_path: Path) -> None:
    """A column that was added after packing can name the groups and the folds, as a field of the `.json` can."""
    dataset = tmp_path / "set"
    fields = {"group": "patient", "folds": "fold"}
    expected = [sf.split_folds(dataset, tmp_path / name, **{name: each}) for name, each in fields.items()]  # type: ignore[arg-type]
    added = table.rename(columns={"patient": "who", "fold": "part"})
    sf.columns.add(dataset, added, path="id")
    columns = {"group": "who", "folds": "part"}
    found = [sf.split_folds(dataset, tmp_path / f"column {name}", **{name: each}) for name, each in columns.items()]  # type: ignore[arg-type]
    for ours, theirs in zip(found, expected, strict=True):
        assert [report.samples for report in ours.values()] == [report.samples for report in theirs.values()]
    for name in fields:
        assert in_val(tmp_path / f"column {name}/fold1") == in_val(tmp_path / f"{name}/fold1")
    fold = sf.open(tmp_path / "folds/fold1")["val"]
    sf.columns.add(tmp_path / "folds/fold1", added.rename(columns={"who": "late"}), path="id", only=["late"])
    late = sf.open(tmp_path / "folds/fold1")["val"].column("late")
    assert late.values.tolist() == added.set_index("id").who.loc[[Path(name).stem for name in fold.sources()]].tolist()


def test_given_folds_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing fold, a name that cannot name a folder and one fold alone are refused; torn copies and groups warn."""
    samples = [(f"{n:03}", {"jpg": jpeg(n // 2)}) for n in range(8)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]})
    for folds, message in (
        (["a", "", "b"] * 2 + ["a", "b"], "sample 1 "),
        ([0, 1, math.nan, None] * 2, "sample 2 "),
        (["a/b", "c"] * 4, "sample 0 .*'a/b'"),
        ([1] * 8, "fold 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.split_folds(dataset, tmp_path / "folds", folds=by_key(dataset, folds))
    with pytest.raises(ConfigError, match="folds is of type float"):
        sf.split_folds(dataset, tmp_path / "folds", folds=2.5)  # type: ignore[arg-type]
    sf.split_folds(dataset, tmp_path / "folds", folds=by_key(dataset, [0, 0, 1, 1, 0, 0, 1, 1]))
    assert "copies" not in caplog.text
    sf.split_folds(dataset, tmp_path / "torn", folds=by_key(dataset, [0, 1] * 4))
    assert "8 images of split 'train' have copies in other existing folds, such as sample 0 of train" in caplog.text
    sf.split_folds(
        dataset,
        tmp_path / "groups",
        folds=by_key(dataset, [0, 0, 1, 1, 0, 0, 1, 1]),
        group=by_key(dataset, [0, 0, 1, 1, 2, 2, 2, 2]),
    )
    assert "4 images of split 'train' have their groups in other existing folds" in caplog.text
    assert "such as sample 4 of train and sample 6 of train; folds=2 or `--folds 2`" in caplog.text
    caplog.clear()
    sf.split_folds(dataset, tmp_path / "one", folds=by_key(dataset, [0, 1, 0, 0, 1, 1, 1, 1]))
    assert "2 images of split 'train' have copies" in caplog.text


def test_an_image_without_a_fold_is_named(tmp_path: Path) -> None:
    """A missing fold is an error that names the image that was packed, where the dataset has its receipts."""
    write_tree(tmp_path, {"1.jpg": jpeg(1), "2.jpg": jpeg(2), "t.csv": b"path,fold\n1.jpg,0\n2.jpg,\n"})
    sf.pack(tmp_path / "t.csv", tmp_path / "set", executor="serial", shuffle=False)
    with pytest.raises(ConfigError, match=r"^training sample 1, '2\.jpg', is in the fold ''; give each a number"):
        sf.split_folds(tmp_path / "set", tmp_path / "folds", folds="fold")


def test_val_and_test_are_held_out_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`test` is held out beside `val`, or later from the rest; each class gives its share to both."""
    dataset = dataset_with_classes(tmp_path / "set", [40, 20])
    report = sf.split(dataset, tmp_path / "both", val=0.1, test=0.2)
    assert report.samples == {"train": 42, "val": 6, "test": 12}
    assert report.classes["val"] == {"class0": 4, "class1": 2}
    assert report.classes["test"] == {"class0": 8, "class1": 4}
    both = sf.open(tmp_path / "both")
    assert sorted(sample["__key__"] for split in both.values() for sample in split) == [f"{n:05}" for n in range(60)]
    groups = [n // 5 for n in range(60)]
    sf.split(dataset, tmp_path / "groups", val=0.2, test=0.2, group=by_key(dataset, groups))
    parts = [{groups[int(sample["__key__"])] for sample in split} for split in sf.open(tmp_path / "groups").values()]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 12
    sf.split(dataset, tmp_path / "val", val=0.1)
    assert sf.split(tmp_path / "val", tmp_path / "later", test=0.2).samples.keys() == {"train", "val", "test"}
    with pytest.raises(ConfigError, match="already has a split test"):
        sf.split(tmp_path / "both", tmp_path / "again", test=0.1)
    with pytest.raises(ConfigError, match="below 1"):
        sf.split(dataset, tmp_path / "all", val=0.5, test=0.5)
    assert "has no sample of" not in caplog.text


def test_an_earlier_split_is_kept(tmp_path: Path) -> None:
    """With `keep`, each image stays in its split, new copies and members of its group follow, and others are split."""
    numbers = np.arange(60) % 50  # the last ten are copies
    samples = [(f"{n:02}", {"jpg": jpeg(int(number)), "cls": b"0"}) for n, number in enumerate(numbers)]
    before = write_dataset(tmp_path / "before", {"train": [samples[:30]]}, classes=("x",))
    after = write_dataset(tmp_path / "after", {"train": [samples[30:], samples[:30]]}, classes=("x",))
    groups = numbers // 3
    sf.split(before, tmp_path / "earlier", val=0.2, test=0.2, group=by_key(before, groups[:30]))
    moved = by_key(after, [*groups[30:], *groups[:30]])
    report = sf.split(after, tmp_path / "later", val=0.2, test=0.2, group=moved, keep=tmp_path / "earlier", seed=1)

    def split_of(path: Path) -> dict[str, str]:
        return {sample["__key__"]: name for name, split in sf.open(path).items() for sample in split}

    earlier, later = split_of(tmp_path / "earlier"), split_of(tmp_path / "later")
    assert earlier.items() <= later.items()
    assert len(later) == 60
    assert len({(group, later[f"{n:02}"]) for n, group in enumerate(groups)}) == len({*groups})
    new = Counter(later[f"{n:02}"] for n in range(30, 50))
    assert all(2 <= new[name] <= 6 for name in ("val", "test"))
    assert report.samples == Counter(later.values()) == {name: found["x"] for name, found in report.classes.items()}


def test_an_earlier_split_of_images_that_are_packed_otherwise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Images of other bytes are found by their sources; those of neither are counted in a warning."""
    src = tmp_path / "src"
    write_tree(src, {f"x/{n}.jpg": jpeg(n, *((20, 20) if n % 8 == 0 else (60, 50))) for n in range(40)})
    for side in (16, 24):  # of which the small images, kept as they are, are the same
        sf.pack(src, tmp_path / f"{side}", short_side=side, workers=1)
    sf.split(tmp_path / "16", tmp_path / "earlier", val=0.3)
    write_tree(src, {f"x/{n}.jpg": jpeg(n, 60, 50) for n in range(40, 50)})
    sf.extend(src, tmp_path / "24", workers=1)

    def splits(url: Path) -> dict[str, str]:
        return {source: name for name, split in sf.open(url).items() for source in split.sources()}

    sf.split(tmp_path / "24", tmp_path / "later", val=0.3, keep=tmp_path / "earlier", seed=1)
    earlier, later = splits(tmp_path / "earlier"), splits(tmp_path / "later")
    assert earlier.items() <= later.items()
    assert (len(later), "removed, or packed otherwise" in caplog.text) == (50, False)
    sf.split(tmp_path / "24", tmp_path / "no more", val=0, keep=tmp_path / "earlier")
    assert {name for name, split in splits(tmp_path / "no more").items() if split == "val"} == {
        name for name, split in earlier.items() if split == "val"
    }
    assert caplog.text == ""
    gone = [name for name, split in earlier.items() if split == "val"][:2]
    train = sf.open(tmp_path / "24")["train"]
    sf.remove(tmp_path / "24", keys=[sample["__key__"] for sample in train if train.source(sample["__key__"]) in gone])
    sf.split(tmp_path / "24", tmp_path / "last", val=0.3, keep=tmp_path / "earlier", seed=2)
    assert "2 images of split 'val'" in caplog.text
    assert earlier.items() - {(name, "val") for name in gone} <= splits(tmp_path / "last").items()


def test_an_earlier_split_whose_dataset_was_packed_again_in_its_place(tmp_path: Path) -> None:
    """The paths of the earlier split are lost, so images that were trained on could be held out."""
    src, dst = tmp_path / "src", tmp_path / "dst"
    write_tree(src, {f"x/{n}.jpg": jpeg(n, *((20, 20) if n % 8 == 0 else (60, 50))) for n in range(40)})
    sf.pack(src, dst, short_side=16, workers=1)
    sf.split(dst, tmp_path / "earlier", val=0.3)
    shutil.rmtree(dst)
    sf.pack(src, dst, short_side=24, workers=1)
    with pytest.raises(ConfigError, match=r"cannot be found by path: .*packed again in its place, pack it there again"):
        sf.split(dst, tmp_path / "later", val=0.3, keep=tmp_path / "earlier")
    shutil.rmtree(dst)
    sf.pack(src, dst, short_side=16, workers=1)
    sf.pack(src, tmp_path / "new", short_side=24, workers=1)
    sf.split(tmp_path / "new", tmp_path / "later", val=0.3, keep=tmp_path / "earlier")


def test_an_earlier_split_that_cannot_be_kept(tmp_path: Path) -> None:
    """A split that would become train, a group in several splits, and other images are refused."""
    dataset, earlier = make_dataset(tmp_path / "set", [20]), tmp_path / "earlier"
    other = write_dataset(tmp_path / "other", {"train": [[(f"{n}", {"jpg": jpeg(90 + n)}) for n in range(4)]]})
    sf.split(dataset, earlier, val=0.2, test=0.2)
    for source, test, groups, message in (
        (dataset, None, None, "has a split test, .*`--test SHARE`"),
        (other, 0.2, None, "none of the training images is in"),
        (dataset, 0.2, by_key(dataset, [0] * 20), "sample 0 is in the splits train and val"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.split(source, tmp_path / "later", val=0.2, test=test, group=groups, keep=earlier)
    twice = [(f"{n}", {"jpg": jpeg(n % 8)}) for n in range(12)]
    copies = write_dataset(tmp_path / "copies", {"train": [twice]})
    sf.split_folds(copies, tmp_path / "own", folds=by_key(copies, np.arange(12) // 8))
    with pytest.raises(ConfigError, match=r"copies of training sample 0 are in the splits train and val of .*; remove"):
        sf.split(copies, tmp_path / "later", val=0.2, keep=tmp_path / "own/fold1")
    assert exit_code("split", str(dataset), str(tmp_path / "later"), "--folds", "3", "--keep", str(earlier)) == 2
    pairs = by_key(dataset, np.arange(20) // 2)
    sf.split_folds(dataset, tmp_path / "folds", folds=3, group=pairs)
    sf.split(dataset, tmp_path / "kept", val=0.2, group=pairs, keep=tmp_path / "folds/fold1")
    for grouped in ("folds/fold1", "kept"):
        with pytest.raises(ConfigError, match=f"{grouped} was split by groups; give the same group, with group="):
            sf.split(dataset, tmp_path / "later", val=0.2, keep=tmp_path / grouped)
    sf.split_folds(dataset, tmp_path / "given", folds=by_key(dataset, np.arange(20) % 3))
    sf.split(dataset, tmp_path / "later", val=0.2, keep=tmp_path / "given/fold1")


def test_classes_that_a_split_lacks_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class without a sample in a split is a warning, with its name; the command counts the classes of each split."""
    samples = [(f"{n:03}", {"jpg": jpeg(n), "cls": b"%d" % (n == 7)}) for n in range(20)]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("cat", "dog, wolf"))
    sf.split(dataset, tmp_path / "virtual", val=0.2)
    assert "val has no sample of 1 of 2 classes: 'dog, wolf'" in caplog.text
    assert exit_code("split", str(dataset), str(tmp_path / "again"), "--val", "0.2") == 0
    assert "cat 4, 'dog, wolf' 0\n" in capsys.readouterr().out


def test_other_splits_are_kept(tmp_path: Path) -> None:
    """A test split is kept as it is, and a dataset without labels can be split too."""
    dataset = make_dataset(tmp_path / "set", {"train": [10], "test": [4]}, labelled=False)
    assert sf.split(dataset, tmp_path / "virtual", val=0.3).samples == {"train": 7, "val": 3, "test": 4}


def test_what_cannot_be_split(tmp_path: Path) -> None:
    """A share that leaves a split empty, a share out of range, and a dataset with a split val are refused."""
    dataset = make_dataset(tmp_path / "set", {"train": [4], "val": [4]})
    with pytest.raises(ConfigError, match="4 samples"):
        sf.split(dataset, tmp_path / "virtual")
    single = make_dataset(tmp_path / "single", [4])
    with pytest.raises(ConfigError, match="leaves train"):
        sf.split(single, tmp_path / "virtual", val=0.01)
    for val in (1, "0.1"):
        with pytest.raises(ConfigError, match=r"0.*1"):
            sf.split(single, tmp_path / "virtual", val=val)  # type: ignore[arg-type]


def test_bad_labels_are_named(tmp_path: Path) -> None:
    """A label that has to be read, and is damaged or not a number, is an error that names the sample."""
    samples = [(f"{n}", {"jpg": jpeg(n), "cls": label}) for n, label in enumerate((b"0", b"01", b"zero"))]
    dataset = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x", "y"))
    with pytest.raises(IntegrityError, match=r"000000\.tar,.*2:.*b'zero'"):
        sf.split(dataset, tmp_path / "virtual")
    tar = dataset / "train/000000.tar"
    data = bytearray(tar.read_bytes())
    data[sf.open(dataset)["train"].reader.members(0, 1)[0].offset + 1] ^= 1  # which makes a 0 of the 1
    tar.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"000000\.tar,.*1:.*'cls'"):
        sf.split(dataset, tmp_path / "virtual")


def test_a_subset_with_the_same_seed_is_another_choice(tmp_path: Path) -> None:
    """A random fraction is not the part that `split` with its seed holds out, which a run on it would have seen."""
    samples = [(f"{number:04}", {"jpg": jpeg(number, 8, 8), "cls": b"0"}) for number in range(200)]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("only",))
    sf.split(url, tmp_path / "parts", val=0.2)
    sf.subset(url, tmp_path / "fifth", fraction=0.2)
    held_out = {sample["__key__"] for sample in sf.open(tmp_path / "parts")["val"]}
    fifth = {sample["__key__"] for sample in sf.open(tmp_path / "fifth")["train"]}
    assert (len(held_out), len(fifth)) == (40, 40)
    assert len(held_out & fifth) < 20
