//! Places over time: where requests go, as a picture of cells.

use crate::figure::Figure;
use crate::findings::Table;
use anyhow::Result;
use kura_trace::Grid;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// The most cells that a picture has in either direction.
const COLUMNS: u64 = 128;
const ROWS: u64 = 64;

/// Requests by cells of time and place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Places {
    /// Nanoseconds of a column.
    pub cell_ns: u64,
    /// Bytes of a row.
    pub cell_bytes: u64,
    /// Column, row, reads and writes of the cells in which something begins.
    pub cells: Vec<[u64; 4]>,
}

impl Places {
    /// The grid in cells no finer than a page can show.
    pub fn of(grid: &Grid) -> Self {
        let (mut columns, mut rows) = (0, 0);
        for cell in grid.cells() {
            columns = columns.max(cell.at_ns / grid.cell_ns + 1);
            rows = rows.max(cell.offset_bytes / grid.cell_bytes + 1);
        }
        let cell_ns = grid.cell_ns * columns.div_ceil(COLUMNS).max(1);
        let cell_bytes = grid.cell_bytes * rows.div_ceil(ROWS).max(1);
        let mut cells = BTreeMap::new();
        for cell in grid.cells() {
            let [reads, writes] = cells.entry([cell.at_ns / cell_ns, cell.offset_bytes / cell_bytes]).or_insert([0, 0]);
            *reads += cell.reads;
            *writes += cell.writes;
        }
        let cells = cells.into_iter().map(|([column, row], [reads, writes])| [column, row, reads, writes]);
        Self { cell_ns, cell_bytes, cells: cells.collect() }
    }

    /// Reads and writes of each column, empty ones too.
    pub fn over_time(&self) -> Vec<[u64; 2]> {
        let columns = self.cells.iter().map(|[column, ..]| column + 1).max().unwrap_or(0);
        let mut sums = vec![[0, 0]; columns as usize];
        for [column, _, reads, writes] in &self.cells {
            let [all_reads, all_writes] = &mut sums[*column as usize];
            *all_reads += reads;
            *all_writes += writes;
        }
        sums
    }

    /// The unit of time that fits.
    pub fn time(&self) -> TimeUnit {
        // The last cell may end behind what can be told.
        TimeUnit::of(self.cell_ns.saturating_mul(self.over_time().len() as u64))
    }

    /// Table and figure of them.
    pub fn drawn(&self, name: &str, title: &str, caption: &str) -> Result<(Table, Figure)> {
        let unit = self.time();
        let columns = ["from", "to", "low_gib", "high_gib", "requests", "kind"];
        let mut table = Table::new(name, title, &columns);
        let gib = |rows: u64| (rows * self.cell_bytes) as f64 / (1_u64 << 30) as f64;
        for [column, row, reads, writes] in &self.cells {
            for (requests, kind) in [(*reads, "reads"), (*writes, "writes")] {
                if requests > 0 {
                    let (from, to) =
                        (unit.of_ns(column * self.cell_ns), unit.of_ns((column + 1).saturating_mul(self.cell_ns)));
                    let low_to_high = [gib(*row).into(), gib(row + 1).into()];
                    let [low, high] = low_to_high;
                    table.row([from.into(), to.into(), low, high, requests.into(), kind.into()]);
                }
            }
        }
        let panel = json!({ "width": 400, "height": 260, "mark": { "type": "rect", "tooltip": true }, "encoding": {
            "x": Figure::axis("from", &format!("time, {}", unit.name)), "x2": { "field": "to" },
            "y": Figure::axis("low_gib", "place, GiB"), "y2": { "field": "high_gib" },
            "color": { "field": "kind", "type": "nominal", "legend": null },
            "opacity": { "field": "requests", "type": "quantitative", "title": "requests in a cell",
                "scale": { "type": "log", "range": [0.15, 1] } },
        }});
        let drawing =
            json!({ "facet": { "column": { "field": "kind", "type": "nominal", "title": null } }, "spec": panel });
        let figure = Figure::of(&table, title, caption, drawing)?;
        Ok((table, figure))
    }
}

/// A unit in which a span of time is a number of moderate size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    /// Its name, short.
    pub name: &'static str,
    ns: f64,
}

impl TimeUnit {
    /// The unit that fits a span.
    pub fn of(span_ns: u64) -> Self {
        match span_ns / 1_000_000_000 {
            0..=600 => Self { name: "s", ns: 1e9 },
            601..=36_000 => Self { name: "min", ns: 60e9 },
            _ => Self { name: "h", ns: 3600e9 },
        }
    }

    /// Nanoseconds in it.
    pub fn of_ns(self, ns: u64) -> f64 {
        ns as f64 / self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_trace::{Anatomy, Op, Request, Scope};

    #[test]
    fn cells_are_few_and_no_request_is_lost() {
        let requests = (0..10_000_u64).map(|n| {
            let op = if n % 4 == 0 { Op::Read } else { Op::Write };
            let offset_bytes = n * 7919 % 1000 * (1 << 20);
            Ok(Request { at_ns: n * 1_000_000_000, op, offset_bytes, len_bytes: 4096, response_ns: 0 })
        });
        let places = Places::of(&Anatomy::of(requests, &Scope::default()).unwrap().places);
        assert!(places.cells.iter().all(|[column, row, ..]| *column < COLUMNS && *row < ROWS));
        let sums = places.over_time();
        assert!(sums.len() > 60, "{}", sums.len());
        assert_eq!(sums.iter().map(|[reads, _]| reads).sum::<u64>(), 2500);
        assert_eq!(sums.iter().map(|[_, writes]| writes).sum::<u64>(), 7500);
        assert_eq!(places.time().name, "min");
    }

    #[test]
    fn the_longest_trace_there_can_be_is_drawn() {
        let read = |at_ns| Ok(Request { at_ns, op: Op::Read, offset_bytes: 0, len_bytes: 4096, response_ns: 0 });
        let requests = [0, u64::MAX].map(read);
        let places = Places::of(&Anatomy::of(requests, &Scope::default()).unwrap().places);
        let (table, _) = places.drawn("all", "all", "").unwrap();
        assert_eq!((places.time().name, table.rows.len()), ("h", 2));
    }
}
