"""Draws every Vega-Lite file of a report's folder as SVG, beside it, without a browser."""

import json
import pathlib
import sys

import vl_convert

for path in sorted(pathlib.Path(sys.argv[1]).glob("*/*.vl.json")):
    spec = json.loads(path.read_text())
    # There is no page around it that would say how wide it is and what lies behind it.
    if spec.get("width") == "container":
        spec["width"] = 720
    spec["config"]["background"] = "white"
    # Words are measured with a font that is here, and shown with one that is no wider.
    spec["config"]["font"] = "DejaVu Sans, Verdana, sans-serif"
    svg = path.with_name(path.name.removesuffix(".vl.json") + ".svg")
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version="6.4"))
    print(svg)
