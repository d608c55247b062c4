import pytest

from protolith.errors import UserError
from protolith.runs import runner
from protolith.runs.config import RunConfig, keys_of, merge, parse_set, read_toml, resolve, to_toml, validated
from protolith.runs.runner import Observer


def test_the_papers_settings_are_the_defaults_of_their_tasks():
    digits = resolve([{"task": "digits"}])
    assert digits.rounds == 100 and digits.model.width == 64 and digits.training.epochs == 10
    assert digits.protocol.samples == {"mnist": 600, "usps": 72, "svhn": 732, "syn": 100}
    assert resolve([{"task": "office10"}]).protocol.repair
    assert resolve([{"task": "pacs"}]).training.batch == 16
    assert resolve([{"task": "pacs", "protocol": {"name": "unseen"}}]).protocol.eval == "all"
    assert resolve([{"task": "digits", "protocol": {"name": "unseen"}}]).protocol.eval == "test"


def test_a_folder_has_a_laptops_settings_and_a_task_that_is_none_the_nearest_right_word(tmp_path):
    assert resolve([{"task": str(tmp_path)}]).rounds == 20
    with pytest.raises(UserError, match=r"unknown task 'digit'. Did you mean 'digits'\?"):
        runner.start(resolve([{"task": "digit"}]), tmp_path / "run", Observer())


def test_what_the_user_typed_always_wins():
    settings = parse_set(["rounds=7", "width=8", "lr=0.5", "samples=33", "flip=true", "mu=0.5"], "fedprox")
    config = resolve([{"method": "fedprox", "task": "mini"}, settings])
    assert (config.rounds, config.model.width, config.training.lr, config.training.flip) == (7, 8, 0.5, True)
    assert config.protocol.samples == 33 and config.params == {"mu": 0.5}
    # The order of the layers: file, then flags, then --set.
    assert resolve([{"rounds": 1}, {"rounds": 2}, {"rounds": 3}]).rounds == 3


@pytest.mark.parametrize(("text", "value"), [("False", False), ("false", False), ("True", True), ("true", True)])
def test_the_word_false_is_false(text, value):
    assert resolve([parse_set([f"flip={text}"], "fedavg")]).training.flip is value


def test_values_are_read_as_toml():
    tree = parse_set(
        ["protocol.clients={pen = 2, photo = 1}", "samples=0.5", "unseen=pen", "name=resnet18"][:3], "fedavg"
    )
    assert tree == {"protocol": {"clients": {"pen": 2, "photo": 1}, "samples": 0.5, "unseen": "pen"}}
    assert parse_set(["protocol.clients.pen=2"], "fedavg") == {"protocol": {"clients": {"pen": 2}}}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["learning_rte=1"], "unknown key in --set 'learning_rte'"),
        (["epoch=1"], "Did you mean 'epochs'"),
        (["training.epoch=1"], "Did you mean 'training.epochs'"),
        (["nu=1"], "'mu'|'nu'"),
        (["name=x"], "short for protocol.name and model.name"),
        (["lr"], "key=value"),
    ],
)
def test_a_wrong_key_gets_the_nearest_right_one(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_set(settings, "fedprox")


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"rounds": 0}, "rounds = 0: .*greater than or equal to 1"),
        ({"rounds": "many"}, "rounds = 'many'"),
        ({"training": {"lr": -1}}, r"training\.lr = -1"),
        ({"training": {"lrr": 1}}, "unknown key 'training.lrr'.*training.lr"),
        ({"buffers": "global"}, "buffers = 'global': .*'average' or 'local'"),
        ({"method": "fedprox", "params": {"nu": 1}}, "unknown key 'params.nu'.*params.mu"),
        ({"method": "fedprox", "params": {"mu": "big"}}, "params.mu = 'big'"),
        ({"method": "fedavgg"}, "unknown method 'fedavgg'. Did you mean 'fedavg'"),
        ({"protocol": {"name": "shfit"}}, "unknown protocol 'shfit'. Did you mean 'shift'"),
        ({"model": {"name": "resnet"}}, "unknown model 'resnet'"),
        ({"device": "gpu"}, "device = 'gpu'"),
        ({"plugins": ["no_such_module_x"]}, "plug-in 'no_such_module_x'"),
    ],
)
def test_wrong_settings_are_one_sentence(layer, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        resolve([layer])
    assert "\n" not in str(error.value)


def test_a_resolved_configuration_is_complete_and_repeats_itself(tmp_path):
    config = resolve([{"method": "fedprox", "task": "office10", "seed": 3}])
    (tmp_path / "c.toml").write_text(to_toml(config))
    again = validated(RunConfig, read_toml(tmp_path / "c.toml"))
    assert again == config and resolve([read_toml(tmp_path / "c.toml")]) == config
    text = to_toml(config)
    for key in keys_of(RunConfig):
        assert key.rsplit(".", 1)[-1] in text


def test_merge_replaces_tables_by_domain_as_a_whole():
    below = {"protocol": {"samples": {"a": 1}, "name": "shift"}}
    assert merge(below, {"protocol": {"samples": {"b": 2}}}) == {"protocol": {"samples": {"b": 2}, "name": "shift"}}


def test_configuration_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"bad\.toml cannot be read"):
        read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    "text", ['protocol = "shift"', "model = 3", "params = []", 'plugins = "a.py"', "a = " + "[" * 5000, "format = 1000"]
)
def test_a_file_of_the_wrong_shape_is_one_sentence(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError):
        resolve([read_toml(path)])


def test_a_large_file_is_not_a_configuration(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(UserError, match="1,048,576 are allowed"):
        read_toml(path)
