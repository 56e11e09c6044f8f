"""Hooks of MkDocs: the site is README.md, the pages of docs/README.md in that order, and every file that they link,
each under its path in the repository, so that a link that works there works here."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "README.md"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_ITEM = re.compile(r"^- .*\n(?:(?:  .*)?\n)*", re.MULTILINE)
_CODE = {".toml": "toml", ".py": "python", ".csv": "text"}


def on_config(config):
    sections = re.split(r"^## (.*)\n", INDEX.read_text(), flags=re.MULTILINE)[1:]
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    config.nav = [{title: [_source(page) for page in _linked(INDEX, text)]} for title, text in texts.items()]
    first = next(iter(config.nav[0].values()))
    config.nav = [first.pop(0), {"All pages": _source(INDEX)}, *config.nav]  # the first is where the site begins
    return config


def on_files(files, config):
    found = {INDEX, *INDEX.parent.glob("*.md")}
    left = list(found)
    while left:
        page = left.pop()
        news = set(_linked(page, _text(page))) - found
        found |= news
        left += [path for path in news if path.suffix in ("", ".md")]
    found |= {*(INDEX.parent / "assets").iterdir()}
    own = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    return Files([*own, *(_file(path, config) for path in sorted(found))])


def on_page_markdown(markdown, page, config, files):
    """Links lead to the pages of what they name; the inside of a list is as deep as MkDocs wants it."""
    folder = (ROOT / page.file.src_uri).parent

    def target(match):
        name = match[1]
        return f"]({name}{_source(folder / name).removeprefix(_name(folder / name))}"

    deeper = _ITEM.sub(lambda match: match[0].replace("\n  ", "\n    "), markdown)
    return _LINK.sub(target, deeper)


def on_post_page(output, page, config):
    """What Material loads from elsewhere, search where the site is opened as files, comes with the site."""
    shim = get_relative_url("docs/assets/file-worker.js", page.url)
    return output.replace("https://unpkg.com/iframe-worker/shim", shim)


def on_post_template(output_content, template_name, config):
    return "" if template_name == "404.html" else output_content  # it is for servers, and loads by absolute paths


def _linked(page, text):
    folder = page if page.is_dir() else page.parent
    return [(folder / target).resolve() for target in _LINK.findall(text)]


def _name(path):
    return path.resolve().relative_to(ROOT).as_posix()


def _source(path):
    """The name of its page for MkDocs: folders, configurations and programs have one, too."""
    return _name(path) + ("/index.md" if path.is_dir() else ".md" if path.suffix in _CODE else "")


def _text(path):
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.suffix in (".md", *_CODE))
        names = [each.relative_to(path).as_posix() for each in inside]
        return f"# {_name(path)}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    return path.read_text()


def _file(path, config):
    if path.suffix in _CODE:
        text = f"---\nsearch: {{ exclude: true }}\n---\n\n# {path.name}\n\n`{_name(path)}`\n\n"
        text += f"````{_CODE[path.suffix]}\n{path.read_text()}\n````\n"
    elif path.is_dir():
        text = _text(path)
    else:
        return File.generated(config, _name(path), abs_src_path=str(path))
    return File.generated(config, _source(path), content=text)
