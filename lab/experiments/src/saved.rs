//! Points that are done: saved at once, so that a run that was cut off goes on where it was.

use crate::experiment::Scale;
use crate::files;
use crate::machine::Machine;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};

/// What a point's data depend on. Data count only where all of it agrees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The experiment's name.
    pub experiment: String,
    /// The point's name.
    pub point: String,
    /// All that is random follows from it.
    pub seed: u64,
    /// How much is done.
    pub scale: Scale,
    /// What the point is made with.
    pub config: Json,
    /// The program that made it.
    pub commit: String,
    /// The machine, where the data are measures of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    identity: Identity,
    data: Box<RawValue>,
}

impl Identity {
    /// Where the point is saved, in the report's folder.
    fn path(&self, out: &Path) -> PathBuf {
        out.join(&self.experiment).join("points").join(format!("{}.json", self.point))
    }

    /// Saves the point's data, JSON text.
    pub fn save(&self, out: &Path, data: &str) -> Result<()> {
        let saved = Saved { identity: self.clone(), data: RawValue::from_string(data.to_owned())? };
        files::write(&self.path(out), serde_json::to_string(&saved)?.as_bytes())
    }

    /// The data of this very point, if they are saved.
    pub fn load(&self, out: &Path) -> Option<String> {
        let saved: Saved = serde_json::from_slice(&std::fs::read(self.path(out)).ok()?).ok()?;
        (saved.identity == *self).then(|| saved.data.get().to_owned())
    }
}
