//! `[tier]`: which policy decides what goes to the fast tier. Its parameters are the policy's own.

use super::Finding;
use super::check::real;
use crate::size::Size;
use kura_controller::{TierConfig, TierSettings};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::{Spanned, Value};

/// What the paper calls a parameter, and what the policy does.
const PAPERS: [(&str, &str); 6] = [
    ("t", "interval_s"),
    ("n", "moved_at_once"),
    ("m", "share_percent"),
    ("c", "streak"),
    ("o", "timeout"),
    ("i", "floor_iops"),
];

/// The tiers: a policy and its parameters.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Tier(BTreeMap<String, Spanned<Value>>);

impl Tier {
    /// What is wrong with it.
    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        findings.extend(self.settings().err());
    }

    /// What a node is told; `None` is no tiering. A configuration that was checked has no finding.
    pub fn config(&self) -> Result<Option<TierConfig>, String> {
        let settings = self.settings().map_err(|finding| finding.text().to_owned())?;
        let single_disk = self.single_disk().map_err(|finding| finding.text().to_owned())?;
        let real = |path: PathBuf| path.canonicalize().unwrap_or(path).display().to_string();
        Ok(settings.map(|settings| TierConfig { settings, single_disk: single_disk.map(real) }))
    }

    /// True where the user wants no tiering, or names the only fast disk: then a pool may have a single one.
    pub fn knows_single_disk(&self) -> bool {
        let off = self.0.get("policy").is_some_and(|policy| policy.get_ref().as_str() == Some("off"));
        off || self.0.contains_key("single_disk")
    }

    /// Refuses a single disk that is none of those that a pool is to be made of.
    pub(super) fn check_single_disk(&self, paths: &[PathBuf], findings: &mut Vec<Finding>) {
        let (Ok(Some(named)), Some(value)) = (self.single_disk(), self.0.get("single_disk")) else { return };
        if !paths.iter().any(|path| real(path) == real(&named)) {
            let text = format!("{} is no disk of the pool: name the path of the only fast disk", named.display());
            findings.push(Finding::new("tier.single_disk", value.span(), text));
        }
    }

    fn single_disk(&self) -> Result<Option<PathBuf>, Finding> {
        let Some(value) = self.0.get("single_disk") else { return Ok(None) };
        match value.get_ref() {
            Value::String(path) if !path.is_empty() => Ok(Some(path.into())),
            _ => Err(Finding::new("tier.single_disk", value.span(), "name the path of the only fast disk")),
        }
    }

    /// The policy and its parameters; `None` where it is off.
    fn settings(&self) -> Result<Option<TierSettings>, Finding> {
        self.single_disk()?;
        let mut table = toml::Table::new();
        let mut policy = "worth".to_owned();
        for (key, value) in &self.0 {
            match (key.as_str(), value.get_ref()) {
                ("single_disk", _) => {}
                ("policy", Value::String(name)) => {
                    let known = TierSettings::NAMES.contains(&name.as_str());
                    match name.as_str() {
                        "off" => return Ok(None),
                        "default" => {}
                        _ if known => policy.clone_from(name),
                        _ => {
                            let names = TierSettings::NAMES.join(", ");
                            let text = format!("no such policy: {name}; here may stand default, off, {names}");
                            return Err(Finding::new("tier.policy", value.span(), text));
                        }
                    }
                }
                ("region" | "sublun", Value::String(text)) => {
                    let size: Size = text.parse().map_err(|why| Finding::new("tier.region", value.span(), why))?;
                    table.insert("region_bytes".into(), Value::Integer(size.0.cast_signed()));
                }
                (_, parameter) => drop(table.insert(key.clone(), parameter.clone())),
            }
        }
        table.insert("policy".into(), Value::String(policy));
        let settings: TierSettings =
            Value::Table(table).try_into().map_err(|error: toml::de::Error| self.finding(error.message()))?;
        settings.check().map_err(|error| self.finding(&error.to_string()))?;
        Ok(Some(settings))
    }

    /// What a policy says of its parameters, at the one that it names.
    fn finding(&self, text: &str) -> Finding {
        let named = |key: &str| {
            let own = PAPERS.iter().find(|(short, _)| *short == key).map_or(key, |(_, own)| own);
            let own = if matches!(own, "region" | "sublun") { "region_bytes" } else { own };
            key != "policy" && text.contains(own)
        };
        let value = self.0.iter().find(|(key, _)| named(key)).or_else(|| self.0.iter().next());
        Finding::new("tier", value.map_or(0..0, |(_, value)| value.span()), text.lines().collect::<Vec<_>>().join(", "))
    }
}
