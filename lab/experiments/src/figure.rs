//! Figures: Vega-Lite specifications that stand alone and look alike.

use crate::findings::Table;
use anyhow::Result;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

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
        debug_assert_eq!(uncoloured(table, &drawing), None, "{}: more names than colours", table.name);
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

    /// What tells apart the lines that are named by `field`, as their encodings of colour and of dashes: `names` in the order of
    /// the legend. What ends in `variant` is a variant: in the same colour, dashed.
    pub fn series(field: &str, names: &[String], variant: &str) -> (Json, Json) {
        let numbers = colours(names, variant);
        debug_assert!(numbers.iter().all(|number| *number < COLOURS.len()), "more lines than colours: {names:?}");
        let colours: Vec<&str> = numbers.into_iter().map(|number| COLOURS[number % COLOURS.len()]).collect();
        let dash = |name: &String| if name.ends_with(variant) { [5, 3] } else { [1, 0] };
        let dashes: Vec<[u8; 2]> = names.iter().map(dash).collect();
        let by = |range: Json| json!({ "field": field, "type": "nominal", "title": null, "scale": { "domain": names, "range": range } });
        (by(json!(colours)), by(json!(dashes)))
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

/// Colours of lines and bars that stand beside each other, as far apart as so many can be on white and on black, for who does not see
/// red or green as well; those that are used most are first.
const COLOURS: [&str; 9] =
    [Figure::OURS, Figure::OURS_TOO, "#43c4a5", "#84466e", "#704d39", "#61cae8", "#01dd78", "#4a69ee", "#4418fb"];

/// The numbers of colours that `names` have: what ends in `variant` has that of what it is a variant of.
fn colours(names: &[String], variant: &str) -> Vec<usize> {
    let mut plain: Vec<&str> = Vec::new();
    let of = |name| {
        let name = str::strip_suffix(name, variant).unwrap_or(name);
        plain.iter().position(|known| *known == name).unwrap_or_else(|| {
            plain.push(name);
            plain.len() - 1
        })
    };
    names.iter().map(String::as_str).map(of).collect()
}

/// A column of a table by which `drawing` colours, and which has more names than there are colours, where it does not say which
/// names have which.
fn uncoloured(table: &Table, drawing: &Json) -> Option<String> {
    let fields = match drawing {
        Json::Object(fields) => fields,
        Json::Array(parts) => return parts.iter().find_map(|part| uncoloured(table, part)),
        _ => return None,
    };
    let colour = fields.get("color").filter(|colour| colour["type"] == "nominal" && colour["scale"]["range"].is_null());
    if let Some(field) = colour.and_then(|colour| colour["field"].as_str()) {
        let column = table.columns.iter().position(|column| column == field);
        let names: BTreeSet<String> =
            table.rows.iter().filter_map(|row| row.get(column?)).map(|name| format!("{name:?}")).collect();
        if names.len() > COLOURS.len() {
            return Some(field.to_owned());
        }
    }
    fields.values().find_map(|part| uncoloured(table, part))
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
        "range": { "category": COLOURS },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_dashed_in_the_colour_of_what_it_is_a_variant_of() {
        let names = ["a", "b, queued", "b", "c", "a, queued"].map(str::to_owned);
        let (colour, dash) = Figure::series("system", &names, ", queued");
        assert_eq!(colour["scale"]["range"], json!([COLOURS[0], COLOURS[1], COLOURS[1], COLOURS[2], COLOURS[0]]));
        assert_eq!(dash["scale"]["range"], json!([[1, 0], [5, 3], [1, 0], [1, 0], [5, 3]]));
        assert_eq!((&colour["scale"]["domain"], &dash["scale"]["domain"]), (&json!(names), &json!(names)));
    }

    #[test]
    fn more_names_than_colours_are_seen() {
        let drawing = json!({ "layer": [{ "encoding": { "color": { "field": "system", "type": "nominal" } } }] });
        let mut table = Table::new("t", "t", &["system"]);
        for number in 0..COLOURS.len() {
            table.row([format!("system {number}").into()]);
        }
        assert_eq!(uncoloured(&table, &drawing), None);
        table.row(["one more".into()]);
        assert_eq!(uncoloured(&table, &drawing), Some("system".to_owned()));
    }

    /// As many lines as there are colours, with a variant of each, and no two alike.
    #[test]
    fn no_two_lines_look_alike() {
        let plain = (0..COLOURS.len()).map(|number| format!("line {number}"));
        let names: Vec<String> = plain.flat_map(|name| [name.clone(), name + ", 2nd run"]).collect();
        let (colour, dash) = Figure::series("system", &names, ", 2nd run");
        let of =
            |json: &Json| json["scale"]["range"].as_array().unwrap().iter().map(Json::to_string).collect::<Vec<_>>();
        let looks: BTreeSet<_> = of(&colour).into_iter().zip(of(&dash)).collect();
        assert_eq!(looks.len(), names.len());
    }
}
