//! The page: its style, its scripts and its data are in it, so that it can be moved, sent and kept.

use super::Section;
use crate::findings::{Criterion, PAPER_COLUMNS, Value};
use crate::outcome::{Outcome, Shown};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");
/// As published: see the assets' README for versions and licences.
const LIBRARIES: [&str; 3] = [
    include_str!("../../assets/vega.min.js"),
    include_str!("../../assets/vega-lite.min.js"),
    include_str!("../../assets/vega-embed.min.js"),
];
/// The papers, by the numbers that experiments call them.
const PAPERS: [(&str, &str); 5] = [
    ("000", "Deguchi, Shimozono and Yamamoto, Performance Improvement of Copy-on-Write Snapshot for Storage Systems."),
    (
        "001",
        "Matsui et al., Performance Improvement of SONAS Asynchronous Replication by Load Balancing of rsync Processes.",
    ),
    ("002", "the paper on on-the-fly automated storage tiering (OTF-AST)."),
    (
        "003",
        "Mogi and Kitsuregawa, Performance Analysis of Hot Mirroring Using Disk Access Traces in a Transaction \
         Processing Environment, University of Tokyo.",
    ),
    (
        "004",
        "Fujita, Morita and Moriai, Evaluation of A Method to Store Objects on the Object-based Storage Device, NTT.",
    ),
];
/// Rows of a table that the page shows; the file has them all.
const ROWS: usize = 60;

pub fn page(sections: &[Section]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "kura lab report" }
                // An icon that is not there would be asked for.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(sections))
                main { @for section in sections { (experiment(section)) } }
                footer {
                    p { "Made by " code { "kura lab report" } ". Figures are drawn by Vega, Vega-Lite and Vega-Embed, \
                        University of Washington Interactive Data Lab, BSD-3-Clause." }
                }
                @for library in LIBRARIES { script { (PreEscaped(without_map(library))) } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn head(sections: &[Section]) -> Markup {
    let criteria: usize = sections.iter().map(|section| section.outcome.criteria.len()).sum();
    let holding: usize = sections.iter().map(|section| section.outcome.holding()).sum();
    html! {
        header {
            h1 { "kura lab report" }
            p.lead {
                @if criteria > 0 { strong { (holding) " of " (criteria) } " criteria hold, in " }
                (sections.len())
                @if sections.len() == 1 { " experiment." } @else { " experiments." }
            }
            p {
                "What a paper or a theory says is marked " span.paper { "like this" } " and was not measured by us: \
                grey in tables, grey and dashed in figures. All else was measured by the program named in each section."
            }
            @for (number, paper) in PAPERS {
                @if sections.iter().any(|section| section.outcome.paper.starts_with(number)) {
                    p { span.paper { (number) } " is " (paper) }
                }
            }
            nav aria-label="Experiments" {
                ul { @for Section { outcome, .. } in sections {
                    li {
                        a href={ "#" (outcome.experiment) } { (outcome.experiment) }
                        " " span.about { (outcome.paper) } " " (tally(outcome))
                    }
                } }
            }
        }
    }
}

/// How many criteria hold, for lists and titles.
fn tally(outcome: &Outcome) -> Markup {
    let (holding, all) = (outcome.holding(), outcome.criteria.len());
    let class = if holding == all { "holds" } else { "fails" };
    html! { @if all > 0 { span class={ "tally " (class) } { (holding) "/" (all) " hold" } } }
}

fn experiment(section: &Section) -> Markup {
    let outcome = &section.outcome;
    html! {
        section id=(outcome.experiment) aria-labelledby={ (outcome.experiment) "-title" } {
            h2 id={ (outcome.experiment) "-title" } {
                (outcome.experiment) " " span.about { (outcome.paper) } " " (tally(outcome))
            }
            p.lead { (outcome.shows) }
            (criteria(&outcome.criteria))
            @for (shown, spec) in outcome.figures.iter().zip(&section.specs) { (figure(shown, spec)) }
            @for (shown, rows) in outcome.tables.iter().zip(&section.tables) { (table(shown, rows)) }
            (made(outcome))
        }
    }
}

fn criteria(criteria: &[Criterion]) -> Markup {
    let paper_has_words = criteria.iter().any(|it| matches!(it.paper, Some(Value::Text(_))));
    let short: Vec<&str> = criteria.iter().filter(|it| !it.holds).map(|it| it.name.as_str()).collect();
    html! {
        @if !criteria.is_empty() {
            @if !short.is_empty() { p.short { strong { "Ours falls short: " } (short.join("; ")) "." } }
            div.scroll { table {
                caption { "Criteria" }
                thead { tr {
                    th scope="col" { "criterion" }
                    th.paper.number[!paper_has_words] scope="col" { "paper" }
                    th.number scope="col" { "ours" }
                    th scope="col" { "bound" }
                    th scope="col" { "verdict" }
                } }
                tbody { @for it in criteria { tr {
                    th scope="row" { (it.name) }
                    td.paper.number[!paper_has_words] { @if let Some(paper) = &it.paper { (paper) } @else { "\u{2013}" } }
                    td.number { (it.ours) }
                    td { (it.bound) }
                    td class=(if it.holds { "holds" } else { "fails" }) {
                        (if it.holds { "\u{2713} holds" } else { "\u{2717} does not hold" })
                    }
                } } }
            } }
        }
    }
}

fn figure(shown: &Shown, spec: &str) -> Markup {
    html! {
        figure {
            h3 { (shown.title) }
            div.drawing data-name=(name(&shown.file)) {
                noscript { "Drawn by a script; the data are in the tables below." }
            }
            // Data may hold what ends a script.
            script type="application/json" { (PreEscaped(spec.replace('<', "\\u003c"))) }
            figcaption { (shown.caption) }
        }
    }
}

/// A file's name without folder and extension: what a downloaded drawing is called.
fn name(file: &str) -> &str {
    let file = file.rsplit('/').next().unwrap_or(file);
    file.split('.').next().unwrap_or(file)
}

fn table(shown: &Shown, rows: &[Vec<String>]) -> Markup {
    let [columns, rows @ ..] = rows else { return html! {} };
    let is_number = |cell: &str| cell.parse::<f64>().is_ok();
    let class = |column: usize, cell: &str| {
        let paper = PAPER_COLUMNS.iter().any(|start| columns[column].starts_with(start));
        format!("{} {}", if is_number(cell) { "number" } else { "" }, if paper { "paper" } else { "" })
    };
    html! {
        details {
            summary { "Table: " (shown.title) " (" (rows.len()) " rows)" }
            div.scroll { table {
                thead { tr { @for (at, column) in columns.iter().enumerate() {
                    th scope="col" class=(class(at, rows.first().map_or("", |row| &row[at]))) { (column.replace('_', " ")) }
                } } }
                tbody { @for row in rows.iter().take(ROWS) {
                    tr { @for (at, cell) in row.iter().enumerate() { td class=(class(at, cell)) { (cell) } } }
                } }
            } }
            p {
                @if rows.len() > ROWS { "The first " (ROWS) " rows; all of them are in " } @else { "As a file: " }
                a href=(shown.file) { (shown.file) } "."
            }
        }
    }
}

fn made(outcome: &Outcome) -> Markup {
    html! {
        dl {
            dt { "command" } dd { code { (outcome.command) } }
            dt { "seed, scale" } dd { (outcome.seed) ", " (outcome.scale) }
            dt { "commit" } dd { code { (outcome.commit) } }
            dt { "machine" } dd { (outcome.machine) }
            dt { "files" } dd { @for file in &outcome.files { a href=(file) { (file) } " " } }
        }
    }
}

/// The maps the libraries name are not here; a browser would look for them.
fn without_map(library: &str) -> String {
    library.lines().filter(|line| !line.starts_with("//# sourceMappingURL=")).collect::<Vec<_>>().join("\n")
}
