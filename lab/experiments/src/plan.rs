//! An experiment at a setting, whatever its types: what the frame works with.

use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// An [`Experiment`] whose types are hidden, so that there can be a list of them.
pub trait Listed: Sync {
    /// What it is.
    fn about(&self) -> About;

    /// True when its points are done one by one.
    fn is_measured(&self) -> bool;

    /// Its points at a setting; `progress` hears how much is read of the traces that were given.
    fn plan<'a>(&'a self, setting: &'a Setting, progress: &Progress<'_>) -> Result<Box<dyn Plan + 'a>>;
}

/// The points of an experiment at a setting. Data are JSON text.
pub trait Plan: Sync {
    /// How many points there are.
    fn points(&self) -> usize;

    /// A point's name.
    fn name(&self, point: usize) -> &str;

    /// What a point is made with.
    fn config(&self, point: usize) -> Result<Json>;

    /// Does a point.
    fn run(&self, point: usize, progress: &Progress<'_>) -> Result<String>;

    /// Whether these are data of such a point: those of an older program may not be.
    fn reads(&self, data: &str) -> Result<()>;

    /// Judges the data of all the points.
    fn judge(self: Box<Self>, data: &[String]) -> Result<Findings>;
}

struct Typed<'a, E: Experiment> {
    experiment: &'a E,
    setting: &'a Setting,
    points: Vec<Point<E::Config>>,
}

impl<E: Experiment> Listed for E {
    fn about(&self) -> About {
        Experiment::about(self)
    }

    fn is_measured(&self) -> bool {
        Experiment::is_measured(self)
    }

    fn plan<'a>(&'a self, setting: &'a Setting, progress: &Progress<'_>) -> Result<Box<dyn Plan + 'a>> {
        let points = self.points(setting, progress)?;
        let mut names = BTreeSet::new();
        for Point { name, .. } in &points {
            let fits = name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
            ensure!(fits, "point {name:?}: its name is to be letters, digits, - and .");
            ensure!(names.insert(name), "point {name}: there are two of this name");
        }
        Ok(Box::new(Typed { experiment: self, setting, points }))
    }
}

impl<E: Experiment> Plan for Typed<'_, E> {
    fn points(&self) -> usize {
        self.points.len()
    }

    fn name(&self, point: usize) -> &str {
        &self.points[point].name
    }

    fn config(&self, point: usize) -> Result<Json> {
        Ok(serde_json::to_value(&self.points[point].config)?)
    }

    fn run(&self, point: usize, progress: &Progress<'_>) -> Result<String> {
        let data = serde_json::to_string(&self.experiment.run(&self.points[point], self.setting, progress)?)?;
        self.reads(&data).context("its data cannot be read back; a NaN or an infinity is among them")?;
        Ok(data)
    }

    fn reads(&self, data: &str) -> Result<()> {
        serde_json::from_str::<E::Data>(data)?;
        Ok(())
    }

    fn judge(self: Box<Self>, data: &[String]) -> Result<Findings> {
        let data = data.iter().map(|data| serde_json::from_str(data)).collect::<Result<Vec<E::Data>, _>>()?;
        let results: Vec<_> = self.points.into_iter().zip(data).collect();
        self.experiment.judge(self.setting, &results)
    }
}
