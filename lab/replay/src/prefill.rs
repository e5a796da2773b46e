//! Writing what will be read.

use crate::node::Node;
use crate::options::Prefill;
use crate::replay::{Phase, Reporter};
use crate::run::Run;
use crate::survey::Survey;
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;

/// Bytes of one write.
const PIECE_BYTES: u64 = 1 << 20;
/// Writes under way.
const DEPTH: usize = 8;

/// Writes what `prefill` says; returns its bytes once they are at their place and the disks rest.
pub(crate) async fn fill(
    node: &Node,
    run: &Run,
    survey: &Survey,
    prefill: Prefill,
    reporter: &Reporter<'_>,
) -> kura_block::Result<u64> {
    let ranges = || ranges(survey, prefill, node.volume_bytes);
    let total_bytes: u64 = ranges().map(|range| range.end - range.start).sum();
    reporter.begin(Phase::Prefill, total_bytes);
    let writes = ranges().flat_map(pieces).map(|piece| async move {
        let bytes = piece.end - piece.start;
        run.write(piece.start, bytes as usize).await?;
        reporter.advance(bytes);
        Ok::<_, kura_block::Error>(())
    });
    stream::iter(writes).buffered(DEPTH).try_collect::<()>().await?;
    node.settle().await?;
    Ok(total_bytes)
}

fn ranges(survey: &Survey, prefill: Prefill, volume_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let all = (prefill == Prefill::All).then_some(0..volume_bytes);
    let read = (prefill == Prefill::Read).then(|| survey.read_ranges());
    let inside = read.into_iter().flatten().map(move |range| range.start..range.end.min(volume_bytes));
    all.into_iter().chain(inside.filter(|range| !range.is_empty()))
}

/// A range cut at multiples of a piece.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let numbers = range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES);
    numbers.map(move |at| range.start.max(at * PIECE_BYTES)..range.end.min((at + 1) * PIECE_BYTES))
}
