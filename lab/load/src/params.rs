//! A load's parameters as text: `name,key=value,key=value`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::ops::RangeInclusive;

/// A load that cannot be: one line that says which part of its name is wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(crate) String);

/// What a load can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, left of the equals sign.
    pub key: &'static str,
    /// What it is when nothing is said, or what was said.
    pub value: String,
    /// What it means, with its unit.
    pub meaning: &'static str,
}

/// What was given, and what the load turned out to take.
pub(crate) struct Params {
    load: String,
    given: BTreeMap<String, String>,
    taken: Vec<Parameter>,
    /// Requests a second, once that is known.
    pub(crate) rate_per_s: f64,
}

impl Params {
    /// Splits a text into the load's name and its parameters.
    pub(crate) fn split(text: &str) -> Result<Self, Invalid> {
        let mut parts = text.split(',');
        let load = parts.next().unwrap_or_default().trim().to_string();
        let mut given = BTreeMap::new();
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(Invalid(format!("load:{load}: {part:?} is no parameter: write KEY=VALUE")));
            };
            let key = key.trim().to_string();
            if given.insert(key.clone(), value.trim().to_string()).is_some() {
                return Err(Invalid(format!("load:{load}: {key} is given twice: leave one out")));
            }
        }
        Ok(Self { load, given, taken: Vec::new(), rate_per_s: 1.0 })
    }

    pub(crate) fn load(&self) -> &str {
        &self.load
    }

    /// Whether it was given and is not yet taken.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// A number, in words of its meaning.
    pub(crate) fn number(
        &mut self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
        meaning: &'static str,
    ) -> Result<f64, Invalid> {
        let parse = |text: &str| text.parse().ok();
        self.take(key, Within { default, range }, parse, ToString::to_string, ("number", meaning))
    }

    /// A whole number.
    pub(crate) fn count(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        meaning: &'static str,
    ) -> Result<u64, Invalid> {
        let parse = |text: &str| text.parse().ok();
        self.take(key, Within { default, range }, parse, ToString::to_string, ("whole number", meaning))
    }

    /// A size in bytes, with K, M, G or T for powers of 1024.
    pub(crate) fn size(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        meaning: &'static str,
    ) -> Result<u64, Invalid> {
        self.take(key, Within { default, range }, parse_size, |bytes| Size(*bytes).to_string(), ("size", meaning))
    }

    /// One of a few words.
    pub(crate) fn choice(
        &mut self,
        key: &'static str,
        default: &'static str,
        words: &[&'static str],
        meaning: &'static str,
    ) -> Result<&'static str, Invalid> {
        let given = self.given.remove(key);
        let text = given.as_deref().unwrap_or(default);
        let Some(word) = words.iter().find(|word| **word == text) else {
            return Err(Invalid(format!("load:{}: {key}={text} is none of {}", self.load, words.join(", "))));
        };
        self.taken.push(Parameter { key, value: (*word).to_string(), meaning });
        Ok(word)
    }

    /// What the load takes and is told; refuses what it does not take.
    pub(crate) fn finish(self) -> Result<Vec<Parameter>, Invalid> {
        if let Some(key) = self.given.keys().next() {
            let known: Vec<&str> = self.taken.iter().map(|parameter| parameter.key).collect();
            return Err(Invalid(format!("load:{}: it takes no {key}: it takes {}", self.load, known.join(", "))));
        }
        Ok(self.taken)
    }

    fn take<T: PartialOrd>(
        &mut self,
        key: &'static str,
        within: Within<T>,
        parse: impl Fn(&str) -> Option<T>,
        show: impl Fn(&T) -> String,
        (kind, meaning): (&str, &'static str),
    ) -> Result<T, Invalid> {
        let Within { default, range } = within;
        let value = match self.given.remove(key) {
            None => default,
            Some(text) => parse(&text).filter(|value| range.contains(value)).ok_or_else(|| {
                let (least, most) = (show(range.start()), show(range.end()));
                Invalid(format!("load:{}: {key}={text} is not a {kind} from {least} to {most}", self.load))
            })?,
        };
        self.taken.push(Parameter { key, value: show(&value), meaning });
        Ok(value)
    }
}

/// What a parameter is when it is not given, and what it may be when it is.
struct Within<T> {
    default: T,
    range: RangeInclusive<T>,
}

/// The text that says the same with every parameter spelt out.
pub(crate) fn spell_out(load: &str, parameters: &[Parameter]) -> String {
    let mut text = load.to_string();
    for parameter in parameters {
        let _ = write!(text, ",{}={}", parameter.key, parameter.value);
    }
    text
}

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |shift: u32| self.0 > 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().find(|(_, shift)| fits(*shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit) || text.ends_with(unit.to_ascii_lowercase()));
    match unit {
        None => text.parse().ok(),
        Some((_, shift)) => text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift),
    }
}
