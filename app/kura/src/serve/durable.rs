//! What a file of the data directory keeps as JSON, replaced as a whole.

use crate::serve::data::{DataDir, replace_file};
use anyhow::Context;
use kura_block::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value, in memory and in its file.
pub struct Durable<T> {
    file: PathBuf,
    /// Held for an instant: a controller's thread reads it, and all of its clients would wait with it.
    value: Mutex<T>,
    /// Held by who changes it, for as long as the file is written.
    turn: Mutex<()>,
}

impl<T: Clone + Default + Serialize + DeserializeOwned> Durable<T> {
    /// What the file of this name has; nothing where there is none. `remedy` is what one does who removes it.
    pub fn open(data: &DataDir, name: &str, remedy: &str) -> anyhow::Result<Self> {
        let file = data.join(name);
        let value = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{}: correct it, or remove it and {remedy}", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => T::default(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        Ok(Self { file, value: Mutex::new(value), turn: Mutex::default() })
    }

    /// The value.
    pub fn get(&self) -> MutexGuard<'_, T> {
        // It is whole even if its holder panicked.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `change` durable, then true.
    pub fn change(&self, change: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
        self.change_by(change, replace_file)
    }

    /// `replace` puts these bytes into the file, durably.
    fn change_by(
        &self,
        change: impl FnOnce(&mut T) -> Result<()>,
        replace: impl FnOnce(&Path, &[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = self.get().clone();
        change(&mut changed)?;
        let failed =
            |error: std::io::Error| Error::device(format!("{}: cannot be written: {error}", self.file.display()));
        let text = serde_json::to_vec_pretty(&changed).map_err(|error| failed(error.into()))?;
        replace(&self.file, &text).map_err(failed)?;
        *self.get() = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_who_reads_waits_for_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(&directory.path().join("data")).unwrap();
        let kept = Durable::<u32>::open(&data, "number.json", "count again").unwrap();
        let set = |number| {
            move |kept: &mut u32| {
                *kept = number;
                Ok(())
            }
        };
        let now = || kept.value.try_lock().map(|value| *value).ok();
        let mut meanwhile = None;
        let written = |_: &Path, _: &[u8]| {
            meanwhile = now();
            Ok(())
        };
        kept.change_by(set(7), written).unwrap();
        assert_eq!((meanwhile, now()), (Some(0), Some(7)), "read meanwhile, and true once it is durable");
        let full = |_: &Path, _: &[u8]| Err(ErrorKind::StorageFull.into());
        assert!(kept.change_by(set(8), full).is_err() && now() == Some(7));
    }
}
