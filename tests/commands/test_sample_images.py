"""`groupwise sample --image` and `gw.sample(images=...)`: pictures before a prompt, of any of three forms."""

from pathlib import Path

import pytest
from PIL import Image

import groupwise as gw
from groupwise.__main__ import main
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data.pictures import MOST_PICTURES, hash_of_pictures
from groupwise.inference.evaluate_model import sample
from groupwise.models import find_model, picture_of_pixels, read_picture
from groupwise.tasks.shapes import draw_shapes


def saved(path: Path, problem: int) -> Path:
    Image.fromarray(draw_shapes(problem)[2]).save(path)
    return path


def test_a_file_is_the_picture_before_the_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path / "0.png", 0)
    assert read_picture(file) == picture_of_pixels(draw_shapes(0)[2])
    command = ["sample", "shapes", "green", "--sampling.max_tokens", "3"]
    assert main([*command, "--image", str(file)]) == 0
    assert capsys.readouterr().out.strip() == "1", "the model counts the next colour, blue"
    forms = [str(file), file, file.read_bytes(), Image.open(file)]
    answers = [gw.sample("shapes", "green", images=[form], **{"sampling.max_tokens": 3}) for form in forms]
    assert set(answers) == {"1"}


def test_several_pictures_are_in_their_order() -> None:
    pictures = [picture_of_pixels(draw_shapes(i)[2]) for i in (0, 1)]
    settings = [("sampling.max_tokens", "3")]
    (found,) = sample("shapes", "red", settings, UserCode(), pictures=pictures)
    (other,) = sample("shapes", "red", settings, UserCode(), pictures=pictures[::-1])
    assert found.context == other.context and found.content_hash == hash_of_pictures(pictures) != other.content_hash
    assert found.logp[0] != other.logp[0]


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("red")
    file = saved(tmp_path / "0.png", 0)
    with pytest.raises(BadData, match=r"text.png: a picture cannot be used"):
        gw.sample("shapes", "red", images=[tmp_path / "text.png"])
    with pytest.raises(BadData, match=r"none.png cannot be read"):
        gw.sample("shapes", "red", images=[tmp_path / "none.png"])
    with pytest.raises(BadData, match="the model takes none"):
        gw.sample("calculator", "1+1=", images=[file])
    with pytest.raises(Usage, match="images has int"):
        gw.sample("shapes", "red", images=[7])
    with pytest.raises(Usage, match="images is str"):
        gw.sample("shapes", "red", images=str(file))
    with pytest.raises(Usage, match=f"{MOST_PICTURES + 1} pictures"):
        sample(str(find_model("shapes")), "red", [], UserCode(), pictures=[read_picture(file)] * (MOST_PICTURES + 1))
