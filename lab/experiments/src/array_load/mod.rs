//! `array-load`: what the disk accesses of a database under TPC-C's transactions are like (003 section 2.2, Figs. 2-4).

mod shape;
#[cfg(test)]
mod tests;

use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table};
use crate::places::Places;
use crate::source::Source;
use anyhow::{Result, bail};
use kura_trace::{Anatomy, Op, Request, Scope, TraceError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Two recordings of a database, without and with checkpoints.
pub struct ArrayLoad;

/// What the figures are of where no trace was given.
const LOADS: [&str; 2] = ["load:tpcc-like", "load:tpcc-like,checkpoint=12"];

/// Requests of which Fig. 2 shows the places.
const PLACES_REQUESTS: usize = 250_000;

/// Fig. 4 ends where so many of the writes are in it: the last few would press it into a corner.
const SHOWN_SHARE: f64 = 0.95;

/// Requests that tell what a page is.
const PAGE_REQUESTS: usize = 10_000;

/// A recording, and what a block of it is.
#[derive(Clone, Debug, Serialize)]
pub struct Recording {
    source: Source,
    block_bytes: u64,
    has_checkpoints: bool,
}

/// What a recording is like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    places: Places,
    /// The share of requests in the busiest tenth of the regions of 1 MiB.
    busiest_tenth: f64,
    /// Blocks by how often they were read and written: reads, writes, blocks.
    frequencies: Vec<[u64; 3]>,
    /// Accesses among which the distances were looked for.
    distance_accesses: u64,
    /// Read accesses from a block's last read to its write, with the share of writes at that distance or less.
    distances: Vec<(u64, f64)>,
}

impl Experiment for ArrayLoad {
    type Config = Recording;
    type Data = Data;

    fn about(&self) -> About {
        About {
            name: "array-load",
            paper: "003 Figs. 2-4",
            shows: "Places, frequencies and read-write distances of a database's disk accesses: --trace without \
                    checkpoints, --trace with them; without traces, of generated loads.",
        }
    }

    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Recording>>> {
        let sources: Vec<Source> = match setting.traces.as_slice() {
            [] => LOADS.iter().map(|load| Source::load(load, setting.seed)).collect::<Result<_>>()?,
            two @ [_, _] => Source::all(two, setting.seed, progress)?,
            other => bail!(
                "it wants two traces, first one without checkpoints, then one with them (`cargo xtask tpcc-trace` \
                 records such), or none for generated loads: {} given",
                other.len()
            ),
        };
        let named = ["without-checkpoints", "with-checkpoints"].into_iter().zip([false, true]).zip(sources);
        let points = named.map(|((name, has_checkpoints), source)| {
            let block_bytes = page_bytes(&source)?;
            Ok(Point { name: name.to_owned(), config: Recording { source, block_bytes, has_checkpoints } })
        });
        points.collect()
    }

    fn run(&self, point: &Point<Recording>, _: &Setting, progress: &Progress<'_>) -> Result<Data> {
        let Recording { source, block_bytes, .. } = &point.config;
        // As many as the paper looked at.
        let scope = Scope { block_bytes: *block_bytes, ..Scope::default() };
        let mut accesses = 0;
        let enough = |request: &Result<Request, _>| {
            let before: u64 = accesses;
            if let Ok(request) = request {
                accesses += u64::from(request.len_bytes).div_ceil(*block_bytes);
            }
            before < scope.frequency_accesses
        };
        let requests = source.requests(|read| progress.at(0.7 * read))?;
        let whole = Anatomy::of(requests.filter(moves_data).take_while(enough), &scope)?;
        progress.at(0.7);
        let requests = source.requests(|read| progress.at(0.7 + 0.3 * read))?;
        let begin = Anatomy::of(requests.filter(moves_data).take(PLACES_REQUESTS), &scope)?;
        let fine = whole.concentration.iter().min_by_key(|concentration| concentration.region_bytes);
        let distances = whole.read_to_write.distances.iter();
        let frequencies = whole.frequencies.iter();
        Ok(Data {
            places: Places::of(&begin.places),
            busiest_tenth: fine.map_or(0.0, |concentration| concentration.busiest_10_percent_share),
            frequencies: frequencies.map(|it| [u64::from(it.reads), u64::from(it.writes), it.blocks]).collect(),
            distance_accesses: whole.read_to_write.accesses,
            distances: distances.map(|it| (it.reads_between, it.share)).collect(),
        })
    }

    fn judge(&self, _: &Setting, results: &[(Point<Recording>, Data)]) -> Result<Findings> {
        let [without, with] = results else { bail!("it is about two recordings: {} given", results.len()) };
        let sources = [&without.0, &with.0].map(|point| &point.config.source);
        let mut criteria = vec![recorded(sources)];
        criteria.extend(shapes(&without.1, &with.1));
        let mut findings = Findings { criteria, ..Findings::default() };
        let mut add = |(table, figure)| {
            findings.tables.push(table);
            findings.figures.push(figure);
        };
        for (point, data) in results {
            let kind = kind(&point.config);
            let title = format!("Fig. 2: places over time, {kind} ({})", point.config.source.title());
            let requests = data.places.over_time().iter().flatten().sum();
            let caption = format!(
                "Each cell is a span of time and of addresses, the stronger the more of the first {} requests begin in \
                 it. The paper: areas of high and of low frequency are clearly apart; with checkpoints writes come and \
                 go, without them they are even.",
                grouped(requests)
            );
            add(data.places.drawn(&format!("places-{}", point.name), &title, &caption)?);
        }
        for (point, data) in results {
            add(frequencies(point, data)?);
        }
        add(distances(results)?);
        Ok(findings)
    }
}

fn moves_data(request: &Result<Request, TraceError>) -> bool {
    request.as_ref().map_or(true, |request| matches!(request.op, Op::Read | Op::Write))
}

/// The database's page: the power of two that most of the first requests have as their size.
fn page_bytes(source: &Source) -> Result<u64> {
    let mut sizes = BTreeMap::new();
    for request in source.requests(|_| {})?.filter(moves_data).take(PAGE_REQUESTS) {
        let bytes = u64::from(request?.len_bytes);
        if bytes.is_power_of_two() {
            *sizes.entry(bytes.max(512)).or_insert(0) += 1;
        }
    }
    let most = sizes.into_iter().max_by_key(|(_, requests)| *requests);
    Ok(most.map_or(4096, |(bytes, _)| bytes))
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", grouped(number / 1000), number % 1000) }
}

fn kind(recording: &Recording) -> &'static str {
    if recording.has_checkpoints { "with checkpoints" } else { "without checkpoints" }
}

/// A load that we generate may be like a database's, and is none. A file that was given may be anything: what it was recorded of is
/// not in it.
fn recorded(sources: [&Source; 2]) -> Criterion {
    let titles = sources.map(Source::title);
    let ours = if titles[0] == titles[1] { titles[0].clone() } else { titles.join(" and ") };
    Criterion {
        name: "where the accesses come from".to_owned(),
        paper: Some("recorded under a database".into()),
        ours: ours.into(),
        bound: "files were given".to_owned(),
        holds: sources.iter().all(|source| matches!(source, Source::Trace { .. })),
    }
}

/// What the paper says of its figures, each held against the data. It gives no numbers: the bounds are ours.
fn shapes(without: &Data, with: &Data) -> Vec<Criterion> {
    let mut criteria = Vec::new();
    for (data, kind) in [(without, "without"), (with, "with")] {
        let name = format!("requests in the busiest tenth of the space, {kind} checkpoints");
        criteria.push(Criterion::at_least(name, data.busiest_tenth, 0.8).against("hot and cold areas clearly apart"));
        let name = format!("accesses to blocks both read and written, {kind} checkpoints");
        let ours = shape::read_and_written(&data.frequencies);
        criteria.push(Criterion::at_least(name, ours, 0.5).against("many blocks are read, modified and written"));
    }
    let (reads, writes) = shape::busiest(&without.frequencies);
    let percent = |(reads, writes): (u64, u64)| {
        100.0 * shape::share_of_accesses(&without.frequencies, |r, w| (r, w) == (reads, writes))
    };
    let shares = format!("{:.2} %, 1 and 1: {:.2} %", percent((reads, writes)), percent((1, 1)));
    criteria.push(Criterion {
        name: "blocks that take the most accesses, without checkpoints".to_owned(),
        paper: Some("read once, written once".into()),
        ours: format!("read {reads}, written {writes} times ({shares})").into(),
        bound: "as in the paper".to_owned(),
        holds: (reads, writes) == (1, 1),
    });
    let rise = shape::steepest_doubling(&without.distances);
    criteria.push(
        Criterion::at_least("writes within one doubling of the distance, without checkpoints", rise.share, 0.5)
            .against("many writes at a typical distance"),
    );
    let early = shape::share_before(&with.distances, rise.from) - shape::share_before(&without.distances, rise.from);
    criteria.push(
        Criterion::at_least("writes before that rise, with checkpoints less without", early, 0.1)
            .against("a considerable part is written before the rise"),
    );
    let often = shape::often_written(&with.frequencies) - shape::often_written(&without.frequencies);
    criteria.push(
        Criterion::number("accesses to blocks written over 4 times, with less without", often, "above 0", often > 0.0)
            .against("with checkpoints more blocks are written many times"),
    );
    let [even, waves] = [without, with].map(|data| shape::periodicity(&writes_over_time(&data.places)));
    criteria.push(
        Criterion::at_least("periodicity of writes (autocorrelation), with checkpoints", waves, 0.3)
            .against("writes are periodic"),
    );
    criteria.push(
        Criterion::at_most("periodicity of writes (autocorrelation), without checkpoints", even, 0.3)
            .against("writes are even over time"),
    );
    criteria
}

fn writes_over_time(places: &Places) -> Vec<f64> {
    let mut writes: Vec<f64> = places.over_time().iter().map(|[_, writes]| *writes as f64).collect();
    // The last column is cut where the recording ends.
    writes.pop();
    writes
}

fn frequencies(point: &Point<Recording>, data: &Data) -> Result<(Table, Figure)> {
    let title = format!("Fig. 3: accesses by how often their block is read and written, {}", kind(&point.config));
    let mut table = Table::new(format!("frequencies-{}", point.name), title.clone(), &["reads", "writes", "share"]);
    for (reads, writes, share) in shape::by_class(&data.frequencies) {
        table.row([reads.into(), writes.into(), share.into()]);
    }
    let caption = format!(
        "The share of the accesses that go to blocks read and written so often, over the first {} accesses to blocks \
         of {} bytes. The paper: blocks read once and written once take the most, and many are read and written some \
         times; checkpoints add blocks that are written often.",
        grouped(shape::accesses(&data.frequencies)),
        grouped(point.config.block_bytes)
    );
    let class = |field: &str, title: &str, sort: &str| {
        json!({ "field": field, "type": "ordinal", "title": title, "sort": shape::class_names_in(sort),
            "axis": { "labelAngle": 0 } })
    };
    let drawing = json!({ "mark": { "type": "rect", "tooltip": true }, "encoding": {
        "x": class("reads", "reads of the block", "rising"), "y": class("writes", "writes of the block", "falling"),
        "color": { "value": Figure::OURS },
        "opacity": { "field": "share", "type": "quantitative", "title": "share of the accesses",
            "scale": { "range": [0.05, 1] } },
    }});
    let figure = Figure::of(&table, title, &caption, drawing)?;
    Ok((table, figure))
}

fn distances(results: &[(Point<Recording>, Data)]) -> Result<(Table, Figure)> {
    let title = "Fig. 4: from a block's read to its write";
    let mut table = Table::new("distances", title, &["reads_between", "share", "recording"]);
    for (point, data) in results {
        for &(reads, share) in &data.distances {
            table.row([reads.into(), share.into(), kind(&point.config).into()]);
        }
    }
    let accesses: Vec<String> = results.iter().map(|(_, data)| grouped(data.distance_accesses)).collect();
    let caption = format!(
        "The share of writes whose block was last read so many reads ago or fewer, over the first accesses of each \
         recording ({}). The paper: without checkpoints the curve rises steeply at the distance at which the buffer \
         cache gives a block up; with checkpoints a considerable part is written before that. The few longer \
         distances are in the table.",
        accesses.join(" and ")
    );
    let longest = results.iter().map(|(_, data)| shape::value_at(&data.distances, SHOWN_SHARE)).max();
    let mut distance = Figure::axis("reads_between", "reads from a block's read to its write");
    distance["scale"]["domain"] = json!([0, longest.unwrap_or(0).max(1)]);
    let mark = json!({ "type": "line", "strokeWidth": 3, "interpolate": "step-after", "clip": true });
    let drawing = json!({ "mark": mark, "encoding": {
        "x": distance,
        "y": Figure::axis("share", "share of writes"),
        "color": { "field": "recording", "type": "nominal", "title": null, "sort": null },
    }});
    let figure = Figure::of(&table, title, &caption, drawing)?;
    Ok((table, figure))
}
