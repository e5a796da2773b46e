//! `device-model`: the simulated devices against the formulas they are said to follow.
//!
//! Everything is measured from outside, as a client of the device would: reads are issued in virtual time and what is
//! known of them is when they were answered.

mod disk;
mod queue;
#[cfg(test)]
mod tests;

use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::{Criterion, Findings, Table};
use anyhow::{Result, ensure};
use disk::{Rotation, Seek, Transfer};
use kura_sim::RotatingSpec;
use queue::{Load, Queue, Server};
use serde::{Deserialize, Serialize};

/// The devices that are measured.
pub struct DeviceModel {
    /// The disk that turns; to be that of the paper's Table 4.
    disk: fn() -> RotatingSpec,
    /// Channels of the device of constant service; to be one.
    channels: usize,
}

impl DeviceModel {
    /// The models as they are.
    pub const TRUE: Self = Self { disk: RotatingSpec::paper, channels: 1 };
}

/// What a point measures, of what.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Config {
    /// Seeks over 1, 1 + step, 1 + 2 step ... cylinders.
    Seek {
        /// The disk.
        disk: RotatingSpec,
        /// Cylinders from one distance to the next.
        step: usize,
    },
    /// The wait for a sector to come round.
    Rotation {
        /// The disk.
        disk: RotatingSpec,
        /// Reads of sectors at random, at times at random.
        reads: u64,
    },
    /// Reads of whole tracks.
    Transfer {
        /// The disk.
        disk: RotatingSpec,
        /// Tracks read on end.
        tracks: u64,
    },
    /// Reads that wait for each other.
    Queue {
        /// Who serves them.
        server: Server,
        /// How they arrive.
        load: Load,
    },
}

/// What a point comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Of [`Config::Seek`].
    Seek(Vec<Seek>),
    /// Of [`Config::Rotation`].
    Rotation(Rotation),
    /// Of [`Config::Transfer`].
    Transfer(Transfer),
    /// Of [`Config::Queue`].
    Queue(Queue),
}

impl Experiment for DeviceModel {
    type Config = Config;
    type Data = Data;

    fn about(&self) -> About {
        About {
            name: "device-model",
            paper: "003 Table 4",
            shows: "The simulated disk seeks, turns and transfers as the paper's formula says, and queues in front of \
                    devices grow as queueing theory says.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let disk = (self.disk)();
        let point = |name: &str, config| Point { name: name.to_owned(), config };
        let mut points = vec![
            // Either step ends at the farthest cylinder.
            point("seek", Config::Seek { disk, step: setting.scaled(4, 1) }),
            point("rotation", Config::Rotation { disk, reads: setting.scaled(40_000, 400_000) }),
            point("transfer", Config::Transfer { disk, tracks: setting.scaled(400, 8_700) }),
        ];
        let arrivals = setting.scaled(400_000, 4_000_000);
        for server in [Server::Constant { channels: self.channels }, Server::Disk(disk)] {
            points.extend(server.arrivals_per_s().iter().map(|&arrivals_per_s| Point {
                name: format!("{}-{arrivals_per_s}", server.queue()),
                config: Config::Queue { server, load: Load { arrivals_per_s, arrivals } },
            }));
        }
        Ok(points)
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Data> {
        Ok(match point.config {
            Config::Seek { disk, step } => Data::Seek(disk::seeks(disk, step)?),
            Config::Rotation { disk, reads } => Data::Rotation(disk::rotation(disk, reads, setting.seed)?),
            Config::Transfer { disk, tracks } => Data::Transfer(disk::transfer(disk, tracks)?),
            Config::Queue { server, load } => Data::Queue(queue::measure(server, load, setting.seed, progress)?),
        })
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Data)]) -> Result<Findings> {
        let mut findings = Findings::default();
        let mut queues = Vec::new();
        for (point, data) in results {
            match (point.config, data) {
                (_, Data::Seek(seeks)) => disk::judge_seeks(seeks, &mut findings)?,
                (_, Data::Rotation(rotation)) => disk::judge_rotation(rotation, &mut findings)?,
                (_, Data::Transfer(transfer)) => disk::judge_transfer(transfer, &mut findings),
                (Config::Queue { server, load }, Data::Queue(queue)) => queues.push((server, load, *queue)),
                _ => {}
            }
        }
        // The points of a server stand together.
        for queues in queues.chunk_by(|(one, ..), (next, ..)| one == next) {
            queue::judge(queues, &mut findings)?;
        }
        Ok(findings)
    }
}
