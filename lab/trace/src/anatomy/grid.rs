//! Where requests go over time: a grid whose cells double when the trace outgrows it.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Columns (time) and rows (place) at most.
const MOST: u64 = 256;

/// Reads and writes by time and place (hot mirroring paper, Fig. 2): at most 256 times 256 cells, of a size that fits
/// the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Nanoseconds of a column.
    pub cell_ns: u64,
    /// Bytes of a row.
    pub cell_bytes: u64,
    /// Reads and writes by column and row.
    counts: BTreeMap<(u64, u64), [u64; 2]>,
}

/// What begins in a span of time and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GridCell {
    /// When the cell begins.
    pub at_ns: u64,
    /// Where the cell begins.
    pub offset_bytes: u64,
    /// Reads in it.
    pub reads: u64,
    /// Writes in it.
    pub writes: u64,
}

impl Default for Grid {
    fn default() -> Grid {
        Grid { cell_ns: 1_000_000, cell_bytes: 4096, counts: BTreeMap::new() }
    }
}

impl Grid {
    /// The cells in which something begins, by time, then by place.
    pub fn cells(&self) -> impl Iterator<Item = GridCell> {
        self.counts.iter().map(|((column, row), [reads, writes])| GridCell {
            at_ns: column * self.cell_ns,
            offset_bytes: row * self.cell_bytes,
            reads: *reads,
            writes: *writes,
        })
    }

    /// Counts a read (kind 0) or a write (kind 1).
    pub(super) fn take(&mut self, at_ns: u64, offset_bytes: u64, kind: usize) {
        while at_ns / self.cell_ns >= MOST {
            self.fold(2, 1);
        }
        while offset_bytes / self.cell_bytes >= MOST {
            self.fold(1, 2);
        }
        let cell = (at_ns / self.cell_ns, offset_bytes / self.cell_bytes);
        self.counts.entry(cell).or_default()[kind] += 1;
    }

    /// So many columns, and so many rows, become one.
    fn fold(&mut self, columns: u64, rows: u64) {
        let fine = std::mem::take(&mut self.counts);
        for ((column, row), [reads, writes]) in fine {
            let cell = self.counts.entry((column / columns, row / rows)).or_default();
            *cell = [cell[0] + reads, cell[1] + writes];
        }
        self.cell_ns *= columns;
        self.cell_bytes *= rows;
    }
}

impl Serialize for Grid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Grid", 3)?;
        fields.serialize_field("cell_ns", &self.cell_ns)?;
        fields.serialize_field("cell_bytes", &self.cell_bytes)?;
        fields.serialize_field("cells", &self.cells().collect::<Vec<_>>())?;
        fields.end()
    }
}
