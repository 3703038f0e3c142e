"""Sphinx configuration of the documentation site: `make docs` builds it into build/docs, warnings as errors."""

import re
import warnings

import matplotlib

import quernel

matplotlib.use("Agg")
warnings.simplefilter("error", DeprecationWarning)

project = "quernel"
author = "The quernel developers"
copyright = "the quernel developers, BSD-3-Clause"
release = version = quernel.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["reproduction/tables/*.md", "sg_execution_times.rst", "auto_gallery/sg_execution_times.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
default_role = "py:obj"  # `name` in a docstring is a link where such a name exists, and code elsewhere
toc_object_entries = False
highlight_language = "none"  # blocks without a language are formulas and commands
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False  # public names are those of __all__
autosummary_imported_members = True
autosummary_context = {"shown_elsewhere": quernel.__all__}
autodoc_typehints = "none"  # the docstrings have types with shapes
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "remove_config_comments": True,
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "doc_module": ("quernel",),
    "backreferences_dir": None,
    "reset_modules": ("matplotlib",),
    "image_srcset": ["2x"],
    "thumbnail_size": (400, 280),
}

html_theme = "pydata_sphinx_theme"
html_title = "quernel"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_domain_indices = False  # the API reference lists the modules
html_theme_options = {
    "logo": {"text": "quernel"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_center": [],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"getting_started": [], "coming_from": [], "cite": [], "index": []}

# Pages link to files of the repository as a code host shows them; on the site these are pages of their own.
PAGE_OF = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changes.md", "../README.md": "index.md"}


def link_pages(app, name, source):
    for file, page in PAGE_OF.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")
    if name == "reproduction/README":  # whose tables are downloads on the site
        source[0] = re.sub(r"\]\((tables/\S+)\.md\)", r"](\1.csv)", source[0])


def skip_inherited(app, what, name, member, skip, options):
    """Leave out what scikit-learn adds to every estimator: its own pages describe that."""
    module = getattr(member, "__module__", None) or ""
    return True if module.startswith("sklearn") or name.endswith("_request") else None


def escape_mathematics(app, what, name, obj, options, lines):
    """Docstrings are written to be read as text: indented formulas become literal blocks, |x| no substitution."""
    found, literal, in_summary = [], False, True
    for i, line in enumerate(lines):
        in_summary = in_summary and set(line) != {"-"}
        before = lines[i - 1] if i else ""
        indented = line.startswith("    ")
        if in_summary and indented and not before.strip() and not literal:
            literal = True
            if not found[-2].endswith("::"):
                found += ["::", ""]
        literal = literal and (indented or not line.strip())
        found.append(line if literal or line.lstrip().startswith(">>>") else escape(line))
    # Docstrings name a page in words, which help() shows as they are; here they are links.
    lines[:] = [re.sub(r"user guide on (\w+)", r":doc:`user guide on \1 </\1>`", line) for line in found]


def escape(line):
    pieces = re.split(r"(``.*?``|`.*?`)", line)
    text = "".join(pieces[::2])
    marks = "|" + ("*" if text.count("*") % 2 else "")
    for k in range(0, len(pieces), 2):  # a name with a last underscore would be a link
        pieces[k] = re.sub(f"([{re.escape(marks)}])", r"\\\1", pieces[k])
        pieces[k] = re.sub(r"\([^()]*\)", lambda match: re.sub(r"_(?=[,)\s])", r"\_", match[0]), pieces[k])
    return "".join(pieces)


def setup(app):
    app.connect("source-read", link_pages)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", escape_mathematics, priority=400)  # before numpydoc
