//! The papers' tables and figures, run again: the frame and the experiments.
//!
//! An [`Experiment`] is made of points, which know nothing of each other. [`run()`] does them on all cores, saves each
//! when it is done, lets the experiment judge them, and writes tables (CSV), figures (Vega-Lite) and one JSON object
//! ([`Outcome`]); [`report()`] makes one page of all outcomes in a folder.
//!
//! ```text
//!   points ──> run, run, run ... ──> saved ──> judge ──> tables, figures, criteria ──> lab-report/NAME/
//!              (pure, in parallel)                                                       └──> lab-report/index.html
//! ```
//!
//! # To add one
//!
//! Write a module with a type that implements [`Experiment`] and add it to the list in `registry.rs`:
//!
//! ```
//! use anyhow::Result;
//! use kura_experiments::{About, Criterion, Experiment, Figure, Findings, Point, Progress, Setting, Table};
//! use serde::Serialize;
//! use serde_json::json;
//!
//! struct Squares;
//!
//! #[derive(Serialize)]
//! struct Side {
//!     metres: u64,
//! }
//!
//! impl Experiment for Squares {
//!     type Config = Side; // what tells a point from the others
//!     type Data = u64; // what it comes to; saved as JSON
//!
//!     fn about(&self) -> About {
//!         About { name: "squares", paper: "999 Fig. 1", shows: "How areas grow with sides." }
//!     }
//!
//!     fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Side>>> {
//!         let most = setting.scaled(4, 100);
//!         Ok((1..=most).map(|metres| Point { name: format!("side-{metres}"), config: Side { metres } }).collect())
//!     }
//!
//!     // One point, without a look at the others, the clock or the disk.
//!     fn run(&self, point: &Point<Side>, _: &Setting, _: &Progress<'_>) -> Result<u64> {
//!         Ok(point.config.metres.pow(2))
//!     }
//!
//!     fn judge(&self, _: &Setting, results: &[(Point<Side>, u64)]) -> Result<Findings> {
//!         let mut table = Table::new("area", "Area by side", &["side_m", "area_m2"]);
//!         for (point, area) in results {
//!             table.row([point.config.metres.into(), (*area).into()]);
//!         }
//!         let drawing = json!({ "mark": "line", "encoding": {
//!             "x": { "field": "side_m", "type": "quantitative", "title": "side, m" },
//!             "y": { "field": "area_m2", "type": "quantitative", "title": "area, m2" },
//!         }});
//!         let figure = Figure::of(&table, "Area by side", "The area grows with the square of the side.", drawing)?;
//!         // Every claim of the paper, judged from these data.
//!         let criteria = vec![Criterion::within("area of a square of 2 m, m2", 4.0, results[1].1 as f64, 0.1)];
//!         Ok(Findings { tables: vec![table], figures: vec![figure], criteria })
//!     }
//! }
//! # assert!(Experiment::about(&Squares).name == "squares");
//! ```

mod array;
mod array_load;
mod device_model;
mod experiment;
mod figure;
mod files;
mod findings;
mod machine;
mod object_stores;
mod outcome;
mod places;
mod plan;
mod registry;
mod replicate;
mod report;
mod run;
mod saved;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod tier;
mod trace_anatomy;

pub use experiment::{About, Experiment, Point, Progress, Scale, Setting};
pub use figure::Figure;
pub use findings::{Criterion, Findings, Table, Value};
pub use machine::{COMMIT, Machine};
pub use outcome::{Outcome, Shown, word};
pub use plan::Listed;
pub use registry::{list, named};
pub use report::{Report, report};
pub use run::{Options, Watch, run};
pub use source::identity;
