//! The model: nodes that mount one file system, whose directories one node at a time may change.
//!
//! ```text
//!   a process    | file_s |  waits for the directory | pass_s | update_s |
//!                | size / bytes_per_s ..........................................|    what of the shorter one does
//!                                                                                    not overlap comes on top
//! ```
//!
//! A process carries one file after the other. For each it prepares the file, gets the right to change the directory,
//! which costs when another node has it, and changes the directory; all the while it sends the data.

use kura_replicate::balance::{Dealer, Item, Learned, Lists, Piece};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What things cost. One set of numbers gives all of the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Bytes a second that a process sends.
    pub bytes_per_s: f64,
    /// For a file, in seconds.
    pub file_s: f64,
    /// For a change of a directory, in seconds.
    pub update_s: f64,
    /// For passing the right to change a directory from a node to another one, in seconds.
    pub pass_s: f64,
    /// Part of the shorter one of a file's data and its other costs that goes on during the longer one.
    pub overlap: f64,
}

impl Model {
    /// The paper's simulators, to the least largest residual over Tables 1 and 2 and the one number that is printed of
    /// Fig. 4. Nothing else was fitted.
    pub const PAPER: Self =
        Self { bytes_per_s: 18.2e6, file_s: 0.0114, update_s: 0.0011, pass_s: 0.016, overlap: 0.825 };

    /// How long a file, or a part of one, takes when nothing is waited for, in seconds.
    pub fn alone_s(&self, bytes: u64, changes_directory: bool) -> f64 {
        self.overlapped_s(self.file_s + if changes_directory { self.update_s } else { 0.0 }, bytes)
    }

    fn overlapped_s(&self, other_s: f64, bytes: u64) -> f64 {
        let data_s = bytes as f64 / self.bytes_per_s;
        other_s.max(data_s) + (1.0 - self.overlap) * other_s.min(data_s)
    }

    /// The least time for all items on workers of these speeds, whoever does what: all work over all speeds.
    pub fn bound_s(&self, items: &[Item<'_>], speeds: &[f64]) -> f64 {
        let work_s: f64 = items.iter().map(|item| self.alone_s(item.size_bytes, true)).sum();
        work_s / speeds.iter().sum::<f64>()
    }
}

/// What a run on the cluster came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// When each process ended, in seconds.
    pub ends_s: Vec<f64>,
    /// What was learned of costs on the way.
    pub learned: Learned,
    /// How often a process took from another one.
    pub stolen: u64,
}

impl Ran {
    /// When the last process ended, in seconds.
    pub fn makespan_s(&self) -> f64 {
        self.ends_s.iter().copied().fold(0.0, f64::max)
    }
}

/// A process, one a node.
#[derive(Default)]
struct Process {
    unit: VecDeque<Piece>,
    files: u64,
    bytes: u64,
    unit_began_s: f64,
    piece_began_s: f64,
}

/// A directory's right.
#[derive(Clone, Copy, Default)]
struct Right {
    holder: Option<usize>,
    free_s: f64,
}

/// What happens to a process next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// It has nothing to do.
    Idle,
    /// It asks for the right to change this piece's directory.
    Asks(Piece),
}

/// Processes of these speeds, one a node, carry what the lists say. Speed 1 is the model's.
pub fn run(model: &Model, items: &[Item<'_>], lists: Lists, speeds: &[f64]) -> Ran {
    let mut dealer = Dealer::new(lists);
    let mut processes: Vec<Process> = speeds.iter().map(|_| Process::default()).collect();
    let places = items.iter().map(|item| item.place as usize + 1).max().unwrap_or(0);
    let mut rights = vec![Right::default(); places];
    let mut ran = Ran { ends_s: vec![0.0; speeds.len()], learned: Learned::default(), stolen: 0 };
    // Events in order of time; whole nanoseconds can be ordered. Ties go by process.
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    let mut events: BinaryHeap<Reverse<(u64, usize, Next)>> =
        (0..speeds.len()).map(|process| Reverse((0, process, Next::Idle))).collect();
    while let Some(Reverse((at_ns, at, next))) = events.pop() {
        let (now_s, process, speed) = (at_ns as f64 * 1e-9, &mut processes[at], speeds[at]);
        match next {
            Next::Idle => {
                if process.unit.is_empty() {
                    ran.learned.add(process.files, process.bytes, now_s - process.unit_began_s);
                    let Some(unit) = dealer.next(at) else {
                        ran.ends_s[at] = now_s;
                        continue;
                    };
                    *process = Process { unit: unit.pieces.into(), unit_began_s: now_s, ..Process::default() };
                }
                let Some(piece) = process.unit.pop_front() else { continue };
                process.piece_began_s = now_s;
                process.bytes += piece.length_bytes;
                if piece.offset_bytes == 0 {
                    process.files += 1;
                    events.push(Reverse((ns(now_s + model.file_s / speed), at, Next::Asks(piece))));
                } else {
                    let ends_s = now_s + model.alone_s(piece.length_bytes, false) / speed;
                    events.push(Reverse((ns(ends_s), at, Next::Idle)));
                }
            }
            Next::Asks(piece) => {
                let right = &mut rights[items[piece.item].place as usize];
                let passed_s = if right.holder.is_some_and(|holder| holder != at) { model.pass_s } else { 0.0 };
                right.free_s = right.free_s.max(now_s) + passed_s + model.update_s;
                right.holder = Some(at);
                let other_s = (right.free_s - process.piece_began_s) * speed;
                let ends_s = process.piece_began_s + model.overlapped_s(other_s, piece.length_bytes) / speed;
                // The right was waited for, whatever the speed.
                events.push(Reverse((ns(ends_s.max(right.free_s)), at, Next::Idle)));
            }
        }
    }
    ran.stolen = dealer.stolen();
    ran
}
