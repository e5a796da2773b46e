//! The policies, siblings.

mod fixed;
mod otf_ast;
#[cfg(test)]
mod tests;
mod wants;
#[cfg(test)]
mod world;
mod worth;

pub use fixed::{Fixed, FixedSettings};
pub use otf_ast::{OtfAst, OtfAstSettings};
pub use worth::{Worth, WorthSettings};

use crate::{Decision, Facts, Standing};
use kura_block::{Error, Result};
use serde::{Deserialize, Serialize};

/// Decides what is on the fast tier. Called once an interval, with the facts of that interval, but for idle times in which it
/// [rests](Policy::rests); what it remembers is inside. The same facts in the same order give the same decisions.
pub trait Policy {
    /// Its name in configurations and reports.
    fn name(&self) -> &'static str;

    /// What to do now. A volume that the facts no longer name is forgotten.
    fn decide(&mut self, facts: &Facts<'_>) -> Decision;

    /// What it thinks of a region, as of the last decision.
    fn standing(&self, volume: u64, region: u32) -> Standing;

    /// True where an interval without I/O would change nothing, of what it decides now or later: until there is I/O again
    /// it need not be asked, and the next facts are of the interval that begins then. Said after a decision, of volumes of
    /// which the user wants nothing.
    fn rests(&self) -> bool;

    /// Bytes of memory that it holds.
    fn memory_bytes(&self) -> usize;
}

/// Which policy, and its parameters: what a configuration says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Settings {
    /// What saves more than it costs: the default.
    Worth(WorthSettings),
    /// The paper's on-the-fly automated storage tiering.
    OtfAst(OtfAstSettings),
    /// The regions with most I/O in a training window, and none after.
    Static(FixedSettings),
}

impl Default for Settings {
    fn default() -> Self {
        Self::Worth(WorthSettings::default())
    }
}

impl Settings {
    /// The names of the policies.
    pub const NAMES: [&'static str; 3] = ["worth", "otf-ast", "static"];

    /// The policy of this name with its defaults; `default` is `worth`.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "worth" | "default" => Ok(Self::Worth(WorthSettings::default())),
            "otf-ast" => Ok(Self::OtfAst(OtfAstSettings::default())),
            "static" => Ok(Self::Static(FixedSettings::default())),
            _ => Err(Error::invalid(format!(
                "no tiering policy {name}: there are {}; default is worth",
                Self::NAMES.join(", ")
            ))),
        }
    }

    /// Refuses parameters out of their range: one line that says which, what it is and what it may be.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Worth(settings) => settings.check(),
            Self::OtfAst(settings) => settings.check(),
            Self::Static(settings) => settings.check(),
        }
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        match self {
            Self::Worth(settings) => settings.region_bytes,
            Self::OtfAst(settings) => settings.region_bytes,
            Self::Static(settings) => settings.region_bytes,
        }
    }

    /// The same with regions of no less than an extent, which is what is moved.
    #[must_use]
    pub fn for_extents(mut self, extent_bytes: u64) -> Self {
        let (Self::Worth(WorthSettings { region_bytes, .. })
        | Self::OtfAst(OtfAstSettings { region_bytes, .. })
        | Self::Static(FixedSettings { region_bytes, .. })) = &mut self;
        *region_bytes = (*region_bytes).max(extent_bytes);
        self
    }

    /// Nanoseconds of an interval.
    pub fn interval_ns(&self) -> u64 {
        match self {
            Self::Worth(settings) => settings.interval_ms * 1_000_000,
            Self::OtfAst(settings) => settings.interval_s * 1_000_000_000,
            Self::Static(settings) => settings.interval_s * 1_000_000_000,
        }
    }

    /// The policy, at its beginning.
    pub fn policy(&self) -> Result<Box<dyn Policy>> {
        self.check()?;
        Ok(match self {
            Self::Worth(settings) => Box::new(Worth::new(settings.clone())),
            Self::OtfAst(settings) => Box::new(OtfAst::new(settings.clone())),
            Self::Static(settings) => Box::new(Fixed::new(settings.clone())),
        })
    }
}

/// Refuses a parameter that is not within `range`.
fn within<T: PartialOrd + std::fmt::Display>(
    policy: &str,
    name: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Error::invalid(format!("tier policy {policy}: {name} = {value}: it may be {least} to {most}")))
}

/// Refuses a size of regions that is no power of two from 64 KiB to 16 GiB.
fn region_size(policy: &str, bytes: u64) -> Result<()> {
    if bytes.is_power_of_two() && (64 << 10..=16 << 30).contains(&bytes) {
        return Ok(());
    }
    let range = "it may be a power of two from 65536 to 17179869184";
    Err(Error::invalid(format!("tier policy {policy}: region_bytes = {bytes}: {range}")))
}
