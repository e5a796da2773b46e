//! `[tier]`: which policy decides what goes to the fast tier. Its parameters are the policy's own.

use super::Finding;
use super::check::real;
use crate::size::Size;
use kura_controller::{TierConfig, TierSettings};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use toml::{Spanned, Value};

/// What says how large a region is.
const REGION: [&str; 4] = ["region", "sublun", "region_bytes", "sublun_bytes"];

/// The tiers: a policy and its parameters.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Tier(BTreeMap<String, Spanned<Value>>);

impl Tier {
    /// What is wrong with it.
    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        findings.extend(self.settings().err());
    }

    /// What a node with such extents is told; `None` is no tiering. A configuration that was checked has no finding but of a
    /// pool that it did not make.
    pub fn config(&self, extent_bytes: u64) -> Result<Option<TierConfig>, String> {
        self.check_region(extent_bytes).map_err(|finding| format!("tier.region: {}", finding.text()))?;
        let settings = self.settings().map_err(|finding| finding.text().to_owned())?;
        let single_disk = self.single_disk().map_err(|finding| finding.text().to_owned())?;
        let real = |path: PathBuf| path.canonicalize().unwrap_or(path).display().to_string();
        let made = |settings: TierSettings| TierConfig {
            settings: settings.for_extents(extent_bytes),
            single_disk: single_disk.map(real),
        };
        Ok(settings.map(made))
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
            let text = format!("{} is not a disk of the pool: name the path of the only fast disk", named.display());
            findings.push(Finding::new("tier.single_disk", value.span(), text));
        }
    }

    /// Refuses regions that are smaller than extents. Those that nobody asked for are made larger.
    pub(super) fn check_region(&self, extent_bytes: u64) -> Result<(), Finding> {
        let given = REGION.iter().find_map(|key| self.0.get(*key));
        let (Some(given), Ok(Some(settings))) = (given, self.settings()) else { return Ok(()) };
        let (region, extent) = (Size(settings.region_bytes()), Size(extent_bytes));
        if region.0 >= extent.0 {
            return Ok(());
        }
        let text = format!("{region} is less than an extent of the pool: give {extent} or more");
        Err(Finding::new("tier.region", given.span(), text))
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
        let (mut policy, mut is_off) = ("worth", false);
        let mut parameters = Vec::new();
        for (key, value) in &self.0 {
            match (key.as_str(), value.get_ref()) {
                ("single_disk", _) => {}
                ("policy", Value::String(name)) => match name.as_str() {
                    "off" => is_off = true,
                    "default" => {}
                    known if TierSettings::NAMES.contains(&known) => policy = known,
                    _ => {
                        let names = TierSettings::NAMES.join(", ");
                        let text = format!("no such policy: {name}; use one of: default, off, {names}");
                        return Err(Finding::new("tier.policy", value.span(), text));
                    }
                },
                ("region" | "sublun", Value::String(text)) => {
                    let wrong = |why| Finding::new("tier.region", value.span(), why);
                    let size: Size = text.parse().map_err(wrong)?;
                    if !size.0.is_power_of_two() {
                        return Err(wrong(format!("{size}: give a power of two, such as 4M")));
                    }
                    parameters.push(("region_bytes", Value::Integer(size.0.cast_signed()), value.span()));
                }
                (name, parameter) => parameters.push((name, parameter.clone(), value.span())),
            }
        }
        if let [_, (_, _, again), ..] =
            parameters.iter().filter(|(key, ..)| REGION.contains(key)).collect::<Vec<_>>()[..]
        {
            return Err(Finding::new("tier.region", again.clone(), "says what region says: give one of them"));
        }
        if is_off {
            // What is said for another day is some policy's all the same.
            policy = TierSettings::NAMES.into_iter().find(|policy| made(policy, &parameters).is_ok()).unwrap_or(policy);
        }
        made(policy, &parameters).map(|settings| Some(settings).filter(|_| !is_off)).map_err(|text| {
            // Not all that is said names its parameter: the one that it is said of without the others, too; or one that
            // does not go with others' defaults.
            let alone = |one: &&[_]| made(policy, one).err();
            let each = || parameters.chunks(1);
            let wrong = each().find(|one| alone(one).as_ref() == Some(&text));
            let wrong = wrong.or_else(|| each().find(|one| alone(one).is_some())).or_else(|| each().next());
            Finding::new("tier", wrong.map_or(0..0, |one| one[0].2.clone()), text)
        })
    }
}

/// The settings of a policy with these parameters.
fn made(policy: &str, parameters: &[(&str, Value, Range<usize>)]) -> Result<TierSettings, String> {
    let named = parameters.iter().map(|(key, value, _)| ((*key).to_owned(), value.clone()));
    let table: toml::Table = named.chain([("policy".to_owned(), Value::String(policy.to_owned()))]).collect();
    let wrong = |error: toml::de::Error| error.message().lines().collect::<Vec<_>>().join(", ");
    let settings: TierSettings = Value::Table(table).try_into().map_err(wrong)?;
    settings.check().map_err(|error| error.to_string())?;
    Ok(settings)
}
