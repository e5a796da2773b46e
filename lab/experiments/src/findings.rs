//! What an experiment comes to: tables, figures, and a verdict on each thing the paper claims.

use crate::figure::Figure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// All that an experiment found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Tables, each a CSV file.
    pub tables: Vec<Table>,
    /// Figures, each a Vega-Lite file.
    pub figures: Vec<Figure>,
    /// Verdicts.
    pub criteria: Vec<Criterion>,
}

/// A number or words. A number that is not whole keeps six significant digits: what is beyond them says nothing to a
/// reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// Words.
    Text(String),
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        // JSON has no other numbers.
        if number.is_finite() { Self::Number(rounded(number)) } else { Self::Text(number.to_string()) }
    }
}

/// Nothing to show where there is no number.
impl From<Option<f64>> for Value {
    fn from(number: Option<f64>) -> Self {
        number.map_or_else(|| Self::Text("-".to_owned()), Self::from)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or(Self::Number(number as f64), Self::Whole)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// `number` to six significant digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// One clause of what the paper claims, judged from the data of this run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Criterion {
    /// What is compared, with its unit.
    pub name: String,
    /// What the paper says; "(formula)" follows a number that is not printed there, but follows from a formula of the
    /// paper. None where the experiment goes beyond it.
    pub paper: Option<Value>,
    /// What we measured.
    pub ours: Value,
    /// What ours must keep.
    pub bound: String,
    /// Whether it does.
    pub holds: bool,
}

impl Criterion {
    /// `ours` is to be at most `tolerance` from the paper's number.
    pub fn within(name: impl Into<String>, paper: f64, ours: f64, tolerance: f64) -> Self {
        let bound = format!("within {tolerance}");
        Self::number(name, ours, bound, (ours - paper).abs() <= tolerance).against(paper)
    }

    /// `ours` is to be at most this part of the paper's number from it; 0.1 is ten per cent.
    pub fn within_part(name: impl Into<String>, paper: f64, ours: f64, part: f64) -> Self {
        let bound = format!("within {} %", rounded(part * 100.0));
        Self::number(name, ours, bound, (ours - paper).abs() <= part * paper.abs()).against(paper)
    }

    /// `ours` is to be no larger than `bound`.
    pub fn at_most(name: impl Into<String>, ours: f64, bound: f64) -> Self {
        Self::number(name, ours, format!("at most {}", rounded(bound)), ours <= bound)
    }

    /// `ours` is to be no smaller than `bound`.
    pub fn at_least(name: impl Into<String>, ours: f64, bound: f64) -> Self {
        Self::number(name, ours, format!("at least {}", rounded(bound)), ours >= bound)
    }

    /// A bound in words, judged by the experiment.
    pub fn number(name: impl Into<String>, ours: f64, bound: impl Into<String>, holds: bool) -> Self {
        Self { name: name.into(), paper: None, ours: ours.into(), bound: bound.into(), holds }
    }

    /// The paper's number is not printed there: it follows from a formula of the paper.
    pub fn by_formula(self) -> Self {
        Self { paper: self.paper.map(|paper| format!("{paper} (formula)").into()), ..self }
    }

    /// What the paper says of it.
    pub fn against(self, paper: impl Into<Value>) -> Self {
        Self { paper: Some(paper.into()), ..self }
    }
}

/// What the name of a column begins with that a paper or a theory gives; the page marks it.
pub const PAPER_COLUMNS: [&str; 3] = ["paper", "theory", "formula"];

/// A table: a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The file's name, without its extension.
    pub name: String,
    /// One line above it.
    pub title: String,
    /// Names of the columns, with their units: `seek_ms`. What is not measured by us says so: [`PAPER_COLUMNS`].
    pub columns: Vec<String>,
    /// Rows as long as `columns`.
    pub rows: Vec<Vec<Value>>,
}

impl Table {
    /// A table without rows.
    pub fn new(name: impl Into<String>, title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { name: name.into(), title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row, one value a column.
    pub fn row(&mut self, row: impl Into<Vec<Value>>) {
        let (row, columns) = (row.into(), self.columns.len());
        assert!(row.len() == columns, "table {}: a row of {} for {columns} columns", self.name, row.len());
        self.rows.push(row);
    }

    /// The table as CSV, a line of names first.
    pub fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(&self.columns)?;
        for row in &self.rows {
            writer.write_record(row.iter().map(Value::to_string))?;
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}
