//! The paper's file trees.

use kura_replicate::balance::Item;
use kura_sim::Sim;
use rand::RngExt;
use serde::Serialize;
use std::fmt;

/// A megabyte, as file systems of the time counted.
pub const MB: u64 = 1 << 20;
/// A gigabyte.
pub const GB: u64 = 1 << 30;

/// A tree: paths in the order of a scan, which is that of paths.
pub struct Tree {
    files: Vec<(String, u64, u32)>,
    directories: u32,
}

impl Tree {
    fn new() -> Self {
        Self { files: Vec::new(), directories: 0 }
    }

    /// What there is to carry.
    pub fn items(&self) -> Vec<Item<'_>> {
        self.files
            .iter()
            .map(|(path, size_bytes, place)| Item { path: path.as_bytes(), size_bytes: *size_bytes, place: *place })
            .collect()
    }

    /// Paths and sizes.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|(path, size_bytes, _)| (path.as_str(), *size_bytes))
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, size_bytes, _)| size_bytes).sum()
    }

    /// Directories of as many files of the same size.
    pub fn flat(directories: u32, files: usize, size_bytes: u64) -> Self {
        let mut tree = Self::new();
        for directory in 0..directories {
            tree.fill(&format!("{directory}"), (0..files).map(|_| size_bytes));
        }
        tree
    }

    /// A directory with ten files of 1 GB, which comes first.
    pub fn with_big_files(mut self) -> Self {
        let mut big = Self::new();
        big.fill("big", (0..10).map(|_| GB));
        for (path, size_bytes, place) in self.files.drain(..) {
            big.files.push((path, size_bytes, place + 1));
        }
        big.directories += self.directories;
        big
    }

    /// Table 2's: each directory has 6 files of 1 MB and 5 directories, four levels under the root.
    pub fn of_table_2() -> Self {
        let mut tree = Self::new();
        tree.grow("tree", 4, 5, &mut |_| vec![MB; 6]);
        tree.with_big_files()
    }

    /// A draw of the paper's program: each directory has 3 files and 4 directories, four levels under the root.
    pub fn drawn(shares: Shares, seed: u64) -> Self {
        let mut rng = Sim::new(seed).rng("replicate: sizes of a tree");
        let mut tree = Self::new();
        tree.grow("tree", 4, 4, &mut |_| {
            (0..3)
                .map(|_| {
                    let mut share = rng.random_range(0..100_u64);
                    for (of_class, [least, most]) in shares.0.into_iter().zip(CLASSES) {
                        if share < of_class {
                            return rng.random_range(least..=most);
                        }
                        share -= of_class;
                    }
                    GB
                })
                .collect()
        });
        tree
    }

    fn grow(&mut self, path: &str, levels: u32, branches: u32, sizes: &mut dyn FnMut(&str) -> Vec<u64>) {
        let files = sizes(path);
        self.fill(path, files.into_iter());
        for branch in 0..if levels == 0 { 0 } else { branches } {
            self.grow(&format!("{path}/{branch}"), levels - 1, branches, sizes);
        }
    }

    fn fill(&mut self, path: &str, sizes: impl Iterator<Item = u64>) {
        let place = self.directories;
        self.directories += 1;
        self.files.extend(sizes.enumerate().map(|(file, size)| (format!("{path}/-{file:04}"), size, place)));
    }
}

/// P(A,B,C,D,E): per cent of the files in each class of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shares(pub [u64; 5]);

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.pad(&format!("P({})", shares.join(",")))
    }
}

/// The classes; within each, every size is as likely.
const CLASSES: [[u64; 2]; 5] = [[1 << 10, MB], [MB, 10 * MB], [10 * MB, 100 * MB], [100 * MB, GB], [GB, GB]];
