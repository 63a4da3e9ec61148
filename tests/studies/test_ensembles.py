import numpy as np
import pytest

from heatbath.studies.ensembles import algorithm_and_equation, follow, frame_steps, histogram_distance
from heatbath.theory.landscapes import Quadratic
from heatbath.theory.trajectories import State
from heatbath.thermostat import Thermostat


@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_algorithm_and_equation_share_the_thermostats_temperature(coupling):
    knobs = Thermostat(0.01, 8, 0.7, True, "uniform:0.9", coupling, dataset_size=40)
    sgd, equation = algorithm_and_equation(knobs, Quadratic(2.0), 3.0)
    assert equation.temperature == pytest.approx(knobs.temperature(3.0), rel=1e-12)
    assert sgd.diffusion == pytest.approx(3.0 / 8.0 * 32.0 / 39.0)
    assert (sgd.law, sgd.coupling, sgd.nesterov) == (knobs.law, coupling, True)


def test_trajectories_of_reshuffled_epochs_are_refused():
    with pytest.raises(ValueError, match="sampling must be 'replacement'"):
        algorithm_and_equation(Thermostat(0.01, 8, sampling="shuffled"), Quadratic(2.0), 3.0)


def test_one_looks_more_often_at_first_and_last_at_the_end():
    np.testing.assert_array_equal(frame_steps(100, 6), [0, 4, 16, 36, 64, 100])
    np.testing.assert_array_equal(frame_steps(2, 40), [0, 1, 2])


def test_followed_positions_are_those_asked_for_and_each_step_is_told():
    told = []
    first = State(np.zeros(3), np.zeros(3), np.zeros(3))
    found = follow(lambda state: state._replace(position=state.position + 1.0), first, [0, 2, 4], told.append)
    np.testing.assert_array_equal(found, np.repeat([[0.0], [2.0], [4.0]], 3, axis=1))
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_the_distance_of_samples_from_their_own_law_is_what_it_says():
    generator, law, count = np.random.default_rng(0), np.array([0.1, 0.2, 0.3, 0.4]), 5000
    variance = law * (1.0 - law) / count
    drawn = [histogram_distance(generator.multinomial(count, law) / count, law, variance) for _ in range(400)]
    found = np.array([distance["found"] for distance in drawn])
    expected = drawn[0]["expected_from_sampling"]
    assert abs(found.mean() - expected) < 4.0 * found.std() / 20.0
    # The shares sum to 1, which the bars' own deviations do not know: of four, it makes the spread a little larger.
    assert found.std() == pytest.approx(drawn[0]["standard_deviation"], rel=0.25)
