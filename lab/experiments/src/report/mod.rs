//! The report: one page of all results in a folder, whole in one file.

mod page;

use crate::files;
use crate::outcome::Outcome;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A report that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Its page.
    #[serde(rename = "report")]
    pub page: PathBuf,
    /// Results that are not in it, for they could not be read: of another program perhaps. A line each.
    pub left_out: Vec<String>,
}

/// Makes `index.html` of the results in the folder.
pub fn report(out: &Path) -> Result<Report> {
    let empty =
        || format!("{}: no results here: make some with `kura lab run NAME`, or name another --output", out.display());
    if !out.is_dir() {
        bail!(empty());
    }
    let (mut sections, mut left_out) = (Vec::new(), Vec::new());
    for outcome in Outcome::all(out)? {
        match outcome.and_then(|outcome| Section::read(out, outcome)) {
            Ok(section) => sections.push(section),
            Err(error) => left_out.push(format!("{error:#}")),
        }
    }
    ensure!(!sections.is_empty(), left_out.into_iter().next().unwrap_or_else(empty));
    let page = out.join("index.html");
    files::write(&page, page::page(&sections).into_string().as_bytes())?;
    Ok(Report { page, left_out })
}

/// An experiment's results with what its files hold.
struct Section {
    outcome: Outcome,
    /// Rows of each table, the names of the columns first.
    tables: Vec<Vec<Vec<String>>>,
    /// Vega-Lite of each figure.
    specs: Vec<String>,
}

impl Section {
    fn read(out: &Path, outcome: Outcome) -> Result<Self> {
        let text = |file: &str| {
            let path = out.join(file);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let tables = outcome.tables.iter().map(|table| {
            let text = text(&table.file)?;
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
            let rows = reader.records().map(|record| Ok(record?.iter().map(str::to_owned).collect()));
            rows.collect::<Result<_>>().with_context(|| format!("reading {}", table.file))
        });
        let tables = tables.collect::<Result<_>>()?;
        let specs = outcome.figures.iter().map(|figure| text(&figure.file)).collect::<Result<_>>()?;
        Ok(Self { outcome, tables, specs })
    }
}
