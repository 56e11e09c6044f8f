"""The results of runs, to be looked at: one page, or the figures of a paper."""

from collections.abc import Callable, Sequence
from pathlib import Path

_ONE_BY_ONE = 6  # methods of which graph, maps, waiting and processes are shown; more make a page slow


def write_report(
    folders: Sequence[Path],
    page_file: Path | None,
    figures: Path | None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Writes the page, and into ``figures`` every figure as SVG, PNG, PDF and CSV. Returns the files.

    ``tell`` is told what is at work. Raises RunFolderError, and OSError where it cannot be written.
    """
    import matplotlib

    from ..text import plain
    from .costs import bytes_by_level, memory_by_process, memory_over_time
    from .drawn import REPORT_LOOK
    from .learning import curves, spread
    from .methods import methods_of
    from .network import graph, map_norms, waiting
    from .page import page

    methods, files = methods_of(folders), []
    for folder in filter(None, (page_file and page_file.parent, figures)):
        folder.mkdir(parents=True, exist_ok=True)
    tell(f"drawing {len(methods)} method{'s' if len(methods) > 1 else ''}")
    with matplotlib.rc_context(REPORT_LOOK):
        together = [*curves(methods), *spread(methods), *bytes_by_level(methods), *memory_over_time(methods)]
        of_one = (graph, map_norms, waiting, memory_by_process)
        each = [(method, [one for draw in of_one for one in draw(method)]) for method in methods[:_ONE_BY_ONE]]
        if page_file is not None:
            tell("writing the page")
            page_file.write_text(plain(page(methods, together, each)), encoding="utf-8")
            files.append(page_file)
        if figures is not None:
            all_drawn = [*together, *(one for _, own in each for one in own)]
            for number, drawn in enumerate(all_drawn, 1):
                tell(f"writing figure {number} of {len(all_drawn)}")
                files += drawn.save(figures)
    return files
