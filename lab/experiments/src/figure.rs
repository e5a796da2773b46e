//! Figures: Vega-Lite specifications that stand alone and look alike.

use crate::findings::Table;
use anyhow::Result;
use serde_json::{Value as Json, json};

/// A figure, drawn by Vega-Lite.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The file's name, without its extension.
    pub name: String,
    /// One line above it.
    pub title: String,
    /// What it shows, in words, for who cannot see it and for who does not know what to look for.
    pub caption: String,
    /// The drawing, whole: data, size and looks too.
    pub spec: Json,
}

impl Figure {
    /// A figure of a table: `drawing` is a Vega-Lite specification without data, size and looks; its fields are the
    /// table's columns. What the paper says is drawn in [`Figure::PAPER`], dashed where it is a line, and named so.
    pub fn of(table: &Table, title: impl Into<String>, caption: impl Into<String>, drawing: Json) -> Result<Self> {
        let (title, caption) = (title.into(), caption.into());
        let mut spec = json!({
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "description": caption,
            "data": { "values": table.csv()?, "format": { "type": "csv" } },
            "config": looks(),
        });
        if let (Some(spec), Json::Object(drawing)) = (spec.as_object_mut(), drawing) {
            // Panels have a size of their own.
            if !drawing.contains_key("facet") {
                spec.insert("width".into(), "container".into());
                spec.insert("height".into(), 260.into());
            }
            spec.extend(drawing);
        }
        Ok(Self { name: table.name.clone(), title, caption, spec })
    }

    /// A drawing of layers over common axes.
    pub fn layers(x: Json, y: Json, layers: Vec<Json>) -> Json {
        // Every layer has the one colour that its name has: a legend for each.
        let resolve = json!({ "scale": { "color": "independent" } });
        json!({ "encoding": { "x": x, "y": y }, "layer": layers, "resolve": resolve })
    }

    /// A layer: a dashed line of what a paper or a theory says.
    pub fn line(field: &str, label: &str) -> Json {
        json!({ "mark": { "type": "line", "interpolate": "monotone", "strokeDash": [6, 4], "strokeWidth": 2 }, "encoding": {
            "y": { "field": field, "type": "quantitative" }, "color": Self::named(label, Self::PAPER),
        }})
    }

    /// A layer: a curve of what we measured, to lie under a dashed line.
    pub fn curve(field: &str, label: &str) -> Json {
        json!({ "mark": { "type": "line", "strokeWidth": 7, "opacity": 0.4 }, "encoding": {
            "y": { "field": field, "type": "quantitative" }, "color": Self::named(label, Self::OURS),
        }})
    }

    /// A layer: dots of what we measured.
    pub fn dots(field: &str, label: &str) -> Json {
        json!({ "mark": { "type": "point", "filled": true, "size": 32, "opacity": 1 }, "encoding": {
            "y": { "field": field, "type": "quantitative" }, "color": Self::named(label, Self::OURS),
        }})
    }

    /// A layer: dots of what a paper says, where it gives points and no line.
    pub fn dots_of_paper(field: &str, label: &str) -> Json {
        json!({ "mark": { "type": "point", "filled": true, "size": 60, "opacity": 1 }, "encoding": {
            "y": { "field": field, "type": "quantitative" }, "color": Self::named(label, Self::PAPER),
        }})
    }

    /// A layer: ticks across bars, of what a paper says of them.
    pub fn ticks_of_paper(field: &str) -> Json {
        let tick = json!({ "type": "tick", "thickness": 4, "color": Self::PAPER });
        json!({ "mark": tick, "encoding": { "y": { "field": field, "type": "quantitative" } } })
    }

    /// An axis of numbers.
    pub fn axis(field: &str, title: &str) -> Json {
        json!({ "field": field, "type": "quantitative", "title": title })
    }

    /// A layer's colour with its name in the legend.
    pub fn named(label: &str, colour: &str) -> Json {
        json!({ "datum": label, "type": "nominal", "title": null, "scale": { "domain": [label], "range": [colour] } })
    }

    /// The colour of what we measured.
    pub const OURS: &'static str = "#2f7ebc";
    /// A second one, where two of ours stand in one figure.
    pub const OURS_TOO: &'static str = "#d9772b";
    /// The colour of what a paper or a formula says.
    pub const PAPER: &'static str = "#8a8f98";
}

/// Looks that read on white and on black alike: words and axes take the colour of the page's text.
fn looks() -> Json {
    json!({
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": { "stroke": null },
        "axis": {
            "labelColor": "currentColor", "titleColor": "currentColor", "domainColor": "currentColor",
            "tickColor": "currentColor", "gridColor": "currentColor", "gridOpacity": 0.12, "domainOpacity": 0.5,
            "tickOpacity": 0.5, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal",
            "titlePadding": 8, "labelOverlap": "greedy", "tickCount": 8,
        },
        "legend": {
            "labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal", "orient": "top", "labelLimit": 0, "symbolBaseFillColor": "currentColor",
        },
        "header": { "labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12 },
        "title": { "color": "currentColor", "fontSize": 12, "fontWeight": "normal", "anchor": "start" },
        "text": { "color": "currentColor" },
        "range": { "category": [Figure::OURS, Figure::OURS_TOO, "#3a9a6d", "#a15fb0", "#b8932a", "#c4536b"] },
    })
}
