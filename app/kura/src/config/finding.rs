//! What is wrong with a configuration, and where.

use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One thing that is wrong.
#[derive(Debug)]
pub struct Finding {
    /// Bytes of the file that it is about; `None` when it is not about a place in the file.
    span: Option<Range<usize>>,
    /// Its key, such as `nbd.listen`; the place says it better where there is one.
    key: Option<&'static str>,
    /// What is wrong and what to do: one line.
    text: String,
}

impl Finding {
    /// What is wrong with the value of `key` that stands at `span`; an empty span says that a flag gave it.
    pub fn new(key: &'static str, span: Range<usize>, text: impl Into<String>) -> Self {
        Self { span: (!span.is_empty()).then_some(span), key: Some(key), text: text.into() }
    }

    /// What is wrong and what to do.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the parser found.
    pub fn of_toml(error: &toml::de::Error) -> Self {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let remedy = match message.as_str() {
            "duplicate key" => Some("remove one"),
            _ if message.starts_with("missing field") => Some("add it"),
            _ => None,
        };
        let plain = || remedy.map_or_else(|| message.clone(), |remedy| format!("{message}: {remedy}"));
        Self { span: error.span(), key: None, text: nearest(&message).unwrap_or_else(plain) }
    }
}

/// Serde's line about an unknown field or variant, with the nearest known one as the remedy.
fn nearest(message: &str) -> Option<String> {
    let what = match message.strip_prefix("unknown ")?.split_once(' ')?.0 {
        "field" => "key",
        _ => "value",
    };
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = words.next()?;
    let known: Vec<&str> = words.collect();
    let near = known.iter().map(|word| (strsim::jaro_winkler(unknown, word), word));
    let near = near.filter(|(likeness, _)| *likeness > 0.75).max_by(|a, b| a.0.total_cmp(&b.0));
    Some(match near {
        Some((_, word)) => format!("no such {what}: {unknown}; did you mean {word}?"),
        None => format!("no such {what}: {unknown}; use one of: {}", known.join(", ")),
    })
}

/// All that is wrong with one configuration, one line each: `FILE:LINE:COLUMN: KEY: what is wrong and what to do`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Findings {
    told: Vec<Told>,
}

/// A finding as it is told; what it is not about is left out.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// From 1 on, as the column, which counts characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    text: String,
}

impl Findings {
    /// `findings` about `file` and its `text`, in the order of their places.
    pub fn new(file: Option<&Path>, text: &str, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.span.as_ref().map(|span| span.start));
        let file = file.unwrap_or(Path::new(""));
        Self { told: findings.iter().map(|finding| told(file, text, finding)).collect() }
    }

    /// A file that cannot be read.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        let text = format!("cannot be read: {error}: name a configuration that can, or none");
        Self { told: vec![Told { file: Some(file.to_owned()), line: None, column: None, key: None, text }] }
    }

    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// How many things are wrong, in words.
    pub fn count(&self) -> String {
        match self.told.len() {
            1 => "a mistake".to_owned(),
            many => format!("{many} mistakes"),
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.told.iter().map(Told::to_string).collect::<Vec<_>>();
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.file.as_ref().map(|file| match (self.line, self.column) {
            (Some(line), Some(column)) => format!("{}:{line}:{column}", file.display()),
            _ => file.display().to_string(),
        });
        let parts = [place.as_deref(), self.key.as_deref(), Some(self.text.as_str())];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(": "))
    }
}

impl std::error::Error for Findings {}

fn told(file: &Path, text: &str, finding: &Finding) -> Told {
    let (key, said) = (finding.key.map(str::to_owned), finding.text.clone());
    let Some(span) = &finding.span else {
        return Told { file: None, line: None, column: None, key, text: said };
    };
    let start = span.start.min(text.len());
    let before = text.get(..start).unwrap_or_default();
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    Told {
        file: Some(file.to_owned()),
        line: Some(before.matches('\n').count() + 1),
        column: Some(column),
        key: key_at(text, start).or(key).or_else(|| bare_key(text, span)),
        text: said,
    }
}

/// The text at `span` when it is a key, as of one that stands twice.
fn bare_key(text: &str, span: &Range<usize>) -> Option<String> {
    let word = text.get(span.clone()).filter(|word| !word.is_empty())?;
    word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then(|| word.to_owned())
}

/// The dotted key that stands at byte `at`, or else the innermost one whose value covers it.
fn key_at(text: &str, at: usize) -> Option<String> {
    let (table, _) = DeTable::parse_recoverable(text);
    // A header is the value of its last key, and spans the keys before that.
    in_table(table.get_ref(), &|key, _| key.contains(&at))
        .or_else(|| in_table(table.get_ref(), &|_, value| value.contains(&at)))
}

/// Takes that key out of a table; whether there was one.
pub fn take_out(table: &mut DeTable<'_>, at: usize) -> bool {
    take_out_of(table, &|key, _| key.contains(&at)) || take_out_of(table, &|_, value| value.contains(&at))
}

fn take_out_of(table: &mut DeTable<'_>, is_it: &impl Fn(Range<usize>, Range<usize>) -> bool) -> bool {
    let below = |value: &mut Spanned<DeValue<'_>>| match value.get_mut() {
        DeValue::Table(table) => take_out_of(table, is_it),
        DeValue::Array(items) => items.iter_mut().any(|item| match item.get_mut() {
            DeValue::Table(table) => take_out_of(table, is_it),
            _ => false,
        }),
        _ => false,
    };
    if table.iter_mut().any(|(_, value)| below(value)) {
        return true;
    }
    let found = table.iter().find(|(key, value)| is_it(key.span(), value.span())).map(|(key, _)| key.clone());
    found.is_some_and(|key| table.remove(&key).is_some())
}

fn in_table(table: &DeTable<'_>, is_it: &impl Fn(Range<usize>, Range<usize>) -> bool) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        match in_value(value.get_ref(), is_it) {
            Some(below) if below.starts_with('[') => Some(format!("{name}{below}")),
            Some(below) => Some(format!("{name}.{below}")),
            None => is_it(key.span(), value.span()).then(|| name.to_string()),
        }
    })
}

fn in_value(value: &DeValue<'_>, is_it: &impl Fn(Range<usize>, Range<usize>) -> bool) -> Option<String> {
    match value {
        DeValue::Table(table) => in_table(table, is_it),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let below = in_value(item.get_ref(), is_it);
            let here = below.is_some() || is_it(0..0, item.span());
            here.then(|| format!("[{index}]{}", below.map(|below| format!(".{below}")).unwrap_or_default()))
        }),
        _ => None,
    }
}
