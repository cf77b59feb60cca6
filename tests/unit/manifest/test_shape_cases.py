from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from buildsys.manifest.shape_cases import DimRange, Dims, case_values, example_dims, representatives


def span(low: int, opt: int, high: int, step: int = 1, odd: int | None = None) -> DimRange:
    return {"min": low, "opt": opt, "max": high, "odd": odd, "multiple_of": step}


def shape_cases(
    dims: Mapping[str, DimRange], wanted: Iterable[str] = ("min", "opt", "max", "odd")
) -> dict[str, Dims]:
    """Return the wanted cases, each distinct shape once, under its representative's name."""
    every = case_values(dims)
    names = representatives(every)
    return {names[case]: every[names[case]] for case in every if case in wanted}


@st.composite
def spans(draw: st.DrawFn) -> DimRange:
    step = draw(st.sampled_from([1, 1, 2, 8, 32]))
    low, opt, high = sorted(draw(st.tuples(*[st.integers(1, 40)] * 3)))
    return span(low * step, opt * step, high * step, step)


def test_the_odd_case_is_odd_in_units_of_the_step() -> None:
    cases = shape_cases({"batch": span(1, 8, 16), "height": span(224, 224, 512, step=32)})
    assert cases["odd"] == {"batch": 3, "height": 288}


def test_two_dimensions_get_different_odd_values() -> None:
    odd = shape_cases({"rows": span(1, 8, 16), "columns": span(1, 8, 16)})["odd"]
    assert odd["rows"] != odd["columns"]


def test_examples_do_not_depend_on_opt_and_max() -> None:
    assert example_dims({"n": span(1, 8, 16)}) == example_dims({"n": span(1, 4, 32)}) == {"n": 2}


@given(st.dictionaries(st.sampled_from("abc"), spans(), max_size=3))
def test_every_value_is_in_its_range(dims: dict[str, DimRange]) -> None:
    for values in (*shape_cases(dims).values(), example_dims(dims)):
        assert values.keys() == dims.keys()
        for name, value in values.items():
            low, high, step = dims[name]["min"], dims[name]["max"], dims[name]["multiple_of"]
            assert low is not None and high is not None and step is not None
            assert low <= value <= high
            assert value % step == 0


@given(
    st.dictionaries(st.sampled_from("abc"), spans(), max_size=3),
    st.sets(st.sampled_from(["min", "opt", "max"])),
)
def test_no_shape_is_repeated_or_lost(dims: dict[str, DimRange], wanted: set[str]) -> None:
    shapes = list(shape_cases(dims, wanted).values())
    assert len(shapes) == len({tuple(shape.items()) for shape in shapes})
    for case in wanted:
        assert {name: span[case] for name, span in dims.items()} in shapes
