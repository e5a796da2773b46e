//! `trace-anatomy`: what a trace is like, in figures.

mod profile;

use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::figure::Figure;
use crate::findings::{Findings, Table, Value};
use crate::places::{Places, TimeUnit};
use crate::source::Source;
use anyhow::Result;
use kura_trace::{Anatomy, Percentiles, Scope};
use profile::Profile;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The anatomy of the traces that were given, or of a generated load.
pub struct TraceAnatomy;

/// What is looked at where no trace was given.
const LOAD: &str = "load:src1_0-like";

/// What a trace is like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Names and values of what is told in a number.
    summary: Vec<(String, Value)>,
    places: Places,
    profile: Profile,
}

impl Experiment for TraceAnatomy {
    type Config = Source;
    type Data = Data;

    fn about(&self) -> About {
        About {
            name: "trace-anatomy",
            paper: "beyond",
            shows: "What the traces given with --trace are like; without one, a generated load.",
        }
    }

    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Source>>> {
        let sources = match setting.traces.as_slice() {
            [] => vec![Source::load(LOAD, setting.seed)?],
            paths => Source::all(paths, setting.seed, progress)?,
        };
        Ok(sources.into_iter().zip(1..).map(|(config, n)| Point { name: format!("trace-{n}"), config }).collect())
    }

    fn run(&self, point: &Point<Source>, _: &Setting, progress: &Progress<'_>) -> Result<Data> {
        let mut profile = profile::Counter::default();
        let requests = point.config.requests(|read| progress.at(read))?.inspect(|request| {
            if let Ok(request) = request {
                profile.take(request);
            }
        });
        let anatomy = Anatomy::of(requests, &Scope::default())?;
        Ok(Data { summary: summary(&anatomy), places: Places::of(&anatomy.places), profile: profile.end() })
    }

    fn judge(&self, _: &Setting, results: &[(Point<Source>, Data)]) -> Result<Findings> {
        let mut findings = Findings::default();
        findings.tables.push(side_by_side(results));
        for (point, data) in results {
            let of = Drawn { name: &point.name, title: &point.config.title() };
            for drawn in
                [of.rates(data)?, of.places(data)?, of.sizes(data)?, of.concentration(data)?, of.footprint(data)?]
            {
                let (table, figure) = drawn;
                findings.tables.push(table);
                findings.figures.push(figure);
            }
        }
        Ok(findings)
    }
}

fn summary(anatomy: &Anatomy) -> Vec<(String, Value)> {
    let mut rows: Vec<(String, Value)> = Vec::new();
    let mut row = |name: &str, value: Value| rows.push((name.to_owned(), value));
    row("requests", anatomy.requests.into());
    row("span, s", (anatomy.span_ns as f64 / 1e9).into());
    row("reads among the requests", anatomy.read_share.into());
    row("reads among the bytes", anatomy.read_bytes_share.into());
    row("discards", anatomy.discards.into());
    row("flushes", anatomy.flushes.into());
    row("requests a second, mean", anatomy.rates.mean_per_s.into());
    row("requests a second, busiest second", anatomy.rates.peak_second_per_s.into());
    row("requests a second, busiest minute", anatomy.rates.peak_minute_per_s.into());
    row("share in the busiest three slots of 10 min", anatomy.rates.busiest_three_10min_share.into());
    row("variation of the times between arrivals", anatomy.interarrival_cv.into());
    let median = |sizes: Option<Percentiles>| sizes.map_or_else(|| "-".into(), |sizes| Value::from(sizes.p50));
    row("size of a read, median, bytes", median(anatomy.read_size_bytes));
    row("size of a write, median, bytes", median(anatomy.write_size_bytes));
    row("share aligned to 4096 bytes", anatomy.aligned_4096_share.into());
    row("share that goes on where one before it ended", anatomy.sequential_share.into());
    row("highest address, bytes", anatomy.address_span_bytes.into());
    row("footprint, bytes", anatomy.footprint_bytes.into());
    // The same names whatever the trace: how large the regions are is a row of its own.
    for (regions, size) in anatomy.concentration.iter().zip(["large", "small"]) {
        row(&format!("size of a {size} region, MiB"), (regions.region_bytes >> 20).into());
        row(&format!("share in the busiest 1 % of the {size} regions"), regions.busiest_1_percent_share.into());
        row(&format!("share in the busiest 10 % of the {size} regions"), regions.busiest_10_percent_share.into());
    }
    rows
}

/// One column a trace.
fn side_by_side(results: &[(Point<Source>, Data)]) -> Table {
    let titles: Vec<String> = results.iter().map(|(point, _)| point.config.title()).collect();
    let columns: Vec<&str> = std::iter::once("quantity").chain(titles.iter().map(String::as_str)).collect();
    let mut table = Table::new("summary", "In numbers", &columns);
    let names = results.first().map(|(_, data)| data.summary.as_slice()).unwrap_or_default();
    for (at, (name, _)) in names.iter().enumerate() {
        let values = results.iter().map(|(_, data)| data.summary[at].1.clone());
        table.row(std::iter::once(name.as_str().into()).chain(values).collect::<Vec<_>>());
    }
    table
}

/// Tables and figures of one trace.
struct Drawn<'a> {
    name: &'a str,
    title: &'a str,
}

type TableAndFigure = (Table, Figure);

impl Drawn<'_> {
    fn table(&self, name: &str, title: &str, columns: &[&str]) -> Table {
        Table::new(format!("{}-{name}", self.name), format!("{}: {title}", self.title), columns)
    }

    fn figure(table: Table, caption: &str, drawing: serde_json::Value) -> Result<TableAndFigure> {
        let figure = Figure::of(&table, table.title.clone(), caption, drawing)?;
        Ok((table, figure))
    }

    fn places(&self, data: &Data) -> Result<TableAndFigure> {
        let (name, title) = (format!("{}-places", self.name), format!("{}: places over time", self.title));
        let caption = "Each cell is a span of time and of addresses, the stronger the more requests begin in it. Stripes \
                       along time are places that stay busy; slopes are sequential.";
        data.places.drawn(&name, &title, caption)
    }

    fn rates(&self, data: &Data) -> Result<TableAndFigure> {
        let unit = data.places.time();
        let mut table = self.table("rates", "requests over time", &["from", "per_s", "kind"]);
        for (column, requests) in data.places.over_time().into_iter().enumerate() {
            let from = unit.of_ns(column as u64 * data.places.cell_ns);
            for (requests, kind) in requests.into_iter().zip(["reads", "writes"]) {
                let per_s = requests as f64 * 1e9 / data.places.cell_ns as f64;
                table.row([from.into(), per_s.into(), kind.into()]);
            }
        }
        let caption = "Requests a second, reads and writes on top of each other; each step is the mean of its time.";
        Self::figure(
            table,
            caption,
            json!({
                "mark": { "type": "area", "interpolate": "step-after", "opacity": 0.8 },
                "encoding": {
                    "x": Figure::axis("from", &format!("time, {}", unit.name)),
                    "y": Figure::axis("per_s", "requests a second"),
                    "color": { "field": "kind", "type": "nominal", "title": null },
                },
            }),
        )
    }

    fn sizes(&self, data: &Data) -> Result<TableAndFigure> {
        let mut table = self.table("sizes", "sizes of requests", &["to_kib", "share", "kind"]);
        let Profile { sizes, requests, .. } = &data.profile;
        for (to_bytes, counts) in sizes {
            for (count, kind) in counts.iter().zip(["reads", "writes"]) {
                let share = *count as f64 / (*requests).max(1) as f64;
                table.row([(*to_bytes as f64 / 1024.0).into(), share.into(), kind.into()]);
            }
        }
        let caption = "The share of requests of each size: up to so many KiB, and more than the bar before.";
        Self::figure(
            table,
            caption,
            json!({
                "mark": "bar",
                "encoding": {
                    "x": { "field": "to_kib", "type": "ordinal", "title": "up to so many KiB", "sort": null, "axis": { "labelAngle": 0 } },
                    "xOffset": { "field": "kind" },
                    "y": Figure::axis("share", "share of requests"),
                    "color": { "field": "kind", "type": "nominal", "title": null },
                },
            }),
        )
    }

    fn concentration(&self, data: &Data) -> Result<TableAndFigure> {
        let mut table = self.table("concentration", "concentration", &["regions", "share"]);
        for &(regions, share) in &data.profile.concentration {
            table.row([regions.into(), share.into()]);
        }
        let mib = data.profile.region_bytes >> 20;
        let caption = format!(
            "The busiest {mib} MiB regions first: so many of them take this share of the requests. The farther the curve is \
             up and left, the more a small fast tier can do."
        );
        Self::figure(
            table,
            &caption,
            json!({
                "mark": { "type": "line", "strokeWidth": 3 },
                "encoding": {
                    "x": { "field": "regions", "type": "quantitative", "title": format!("regions of {mib} MiB, busiest first"),
                        "scale": { "type": "log" } },
                    "y": { "field": "share", "type": "quantitative", "title": "share of requests",
                        "scale": { "domain": [0, 1] } },
                    "color": { "value": Figure::OURS },
                },
            }),
        )
    }

    fn footprint(&self, data: &Data) -> Result<TableAndFigure> {
        let growth = &data.profile.footprint;
        let unit = TimeUnit::of(growth.last().map_or(0, |(at_ns, _)| *at_ns));
        let mut table = self.table("footprint", "growth of the footprint", &["at", "gib"]);
        for &(at_ns, bytes) in growth {
            table.row([unit.of_ns(at_ns).into(), (bytes as f64 / (1_u64 << 30) as f64).into()]);
        }
        let caption = format!(
            "What was read or written at least once by then, in blocks of {} KiB. A curve that flattens comes back to the \
             same places.",
            (data.profile.region_bytes / profile::BLOCKS) >> 10
        );
        Self::figure(
            table,
            &caption,
            json!({
                "mark": { "type": "line", "strokeWidth": 3 },
                "encoding": {
                    "x": Figure::axis("at", &format!("time, {}", unit.name)),
                    "y": Figure::axis("gib", "footprint, GiB"),
                    "color": { "value": Figure::OURS },
                },
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_trace::{Op, Request};

    /// Of a trace that touches very much, the small regions are larger than of another one: its own size stands by its shares.
    #[test]
    fn rows_have_the_same_names_and_each_trace_its_size_of_regions() {
        let of = |region_bytes| {
            let read = Request { at_ns: 0, op: Op::Read, offset_bytes: 0, len_bytes: 4096, response_ns: 0 };
            let mut anatomy = Anatomy::of([Ok(read)], &Scope::default()).unwrap();
            anatomy.concentration[1].region_bytes = region_bytes;
            summary(&anatomy)
        };
        let (one, other) = (of(1 << 20), of(1 << 24));
        let differing: Vec<_> = one.iter().zip(&other).filter(|(one, other)| one != other).collect();
        let size = |mib: u64| ("size of a small region, MiB".to_owned(), Value::from(mib));
        assert_eq!(differing, [(&size(1), &size(16))]);
    }
}
