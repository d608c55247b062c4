"""Sites that were not there all the time: the mean is over the others, and they are named."""

from protolith.evaluation.accuracy import reached
from protolith.runs.attendance import absences, always_there, last_shared, sentences, spans, with_whole_means
from protolith.runs.result import Absence, Summary
from protolith.runs.round import Round

OLD = {"method": "m", "task": "t", "protocol": "shift", "seed": 0, "rounds": 3, "rule": "", "accuracy": {}, "mean": 5.0}


def lines_of(*accuracies):
    return [
        Round(round=i + 1, accuracy=found, mean=sum(found.values()) / len(found), bytes_down=1, bytes_up=1)
        for i, found in enumerate(accuracies)
    ]


def test_a_site_that_missed_a_round_that_counts_is_not_in_the_mean_and_is_named():
    lines = lines_of({"a": 10.0, "b": 20.0, "c": 30.0}, {"a": 11.0, "b": 21.0}, {"a": 12.0, "c": 32.0})
    assert last_shared(lines) == lines and always_there(lines) == ["a"]
    found = absences(lines, lines, ["a", "b", "c", "d"])
    assert found == {
        "b": Absence(last=2, accuracy=21.0, missed=(3,)),
        "c": Absence(last=3, accuracy=32.0, missed=(2,)),
        "d": Absence(missed=(1, 2, 3)),
    }
    assert sentences(Summary.of({**OLD, "absent": found}))[::2] == [
        "b was not tested in round(s) 3 and is not in the mean; last tested in round 2, with 21.00 %",
        "d was not tested in round(s) 1 to 3 and is not in the mean; it was never tested",
    ]


def test_where_no_site_was_there_all_the_time_fewer_rounds_count():
    lines = lines_of({"a": 10.0}, {"b": 20.0}, {"a": 30.0, "b": 40.0})
    assert last_shared(lines) == lines[1:] and always_there(lines[1:]) == ["b"]
    assert absences(lines, lines[1:], ["a", "b"]) == {"a": Absence(last=3, accuracy=30.0, missed=(2,))}


def test_a_mean_over_fewer_sites_reaches_no_target_and_is_no_mean_of_a_curve():
    lines = lines_of({"a": 10.0, "b": 10.0}, {"a": 90.0}, {"a": 50.0, "b": 50.0})
    whole = with_whole_means(lines)
    assert [line.mean for line in whole] == [10.0, None, 50.0] and lines[1].mean == 90.0
    assert reached(whole, 40.0) == (3, 6)


def test_rounds_in_words():
    assert spans([3, 4, 5, 8, 10, 11]) == "3 to 5, 8, 10 to 11" and spans([2]) == "2"


def test_an_old_summary_has_no_word_of_it():
    assert sentences(Summary.of(OLD, written=1)) == []
