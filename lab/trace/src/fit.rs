//! Addresses of a trace, fitted to a volume of another size.

use std::fmt;
use std::str::FromStr;

use crate::blocks::{BlockSet, Ranks};
use crate::error::{Complaint, TraceError};
use crate::request::{Op, Request};

/// Alignment is kept to pages of this size: an address moves by a multiple of it.
const PAGE_BYTES: u64 = 4096;
/// Compacted regions. What lies close together stays so within them.
const REGION_BYTES: u64 = 1 << 20;

/// How addresses of a trace become addresses of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fit {
    /// As they are; a request beyond the end is refused.
    #[default]
    None,
    /// Modulo the volume's size. A request that would cross the end is moved back to end there.
    Wrap,
    /// Linearly, the trace's whole span onto the whole volume, larger or smaller; alignment to 4 KiB is kept.
    Scale,
    /// The regions of 1 MiB that the trace touches, packed from the volume's start in their order.
    Compact,
}

impl Fit {
    const ALL: [Fit; 4] = [Fit::None, Fit::Wrap, Fit::Scale, Fit::Compact];

    fn name(self) -> &'static str {
        match self {
            Fit::None => "none",
            Fit::Wrap => "wrap",
            Fit::Scale => "scale",
            Fit::Compact => "compact",
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fit {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Fit, TraceError> {
        Fit::ALL.into_iter().find(|fit| fit.name() == name).ok_or_else(|| {
            let what = format!("'{}' is no way to fit addresses", name.escape_debug());
            Complaint::new(what, "none, wrap, scale and compact are").nowhere()
        })
    }
}

/// Moves requests to places that a volume has.
pub struct Fitter {
    volume_bytes: u64,
    how: How,
}

enum How {
    None,
    Wrap,
    Scale { span_bytes: u64 },
    Compact(Ranks),
}

impl Fitter {
    /// Fits to a volume of `volume_bytes`. `first_pass` opens the requests that will be fitted; it is called where all
    /// of them must be seen first (scale, compact).
    ///
    /// Refused: a volume too small for what is to be packed into it, and what the first pass refuses.
    pub fn new<I: Iterator<Item = Result<Request, TraceError>>>(
        fit: Fit,
        volume_bytes: u64,
        first_pass: impl FnOnce() -> Result<I, TraceError>,
    ) -> Result<Fitter, TraceError> {
        let how = match fit {
            Fit::None => How::None,
            Fit::Wrap => How::Wrap,
            Fit::Scale => How::Scale { span_bytes: span_bytes(first_pass()?)? },
            Fit::Compact => How::Compact(touched(first_pass()?, volume_bytes)?),
        };
        Ok(Fitter { volume_bytes, how })
    }

    pub(crate) fn fit(&self, request: Request) -> Result<Request, Complaint> {
        if request.op == Op::Flush {
            return Ok(request);
        }
        let Request { op, offset_bytes, len_bytes, .. } = request;
        let Some(last) = self.volume_bytes.checked_sub(u64::from(len_bytes)) else {
            let what = format!("a {op} of {len_bytes} bytes for a volume of {} bytes", self.volume_bytes);
            return Err(Complaint::new(what, "take a larger volume"));
        };
        let fitted = match &self.how {
            How::None if offset_bytes > last => {
                let (end, volume) = (request.end_bytes(), self.volume_bytes);
                let what = format!("a {op} at {offset_bytes} ends at {end}, beyond the volume's {volume} bytes");
                return Err(Complaint::new(what, "take a larger volume, or fit by wrap, scale or compact"));
            }
            How::None => offset_bytes,
            How::Wrap => (offset_bytes % self.volume_bytes).min(last),
            How::Scale { span_bytes } => scaled(offset_bytes, *span_bytes, self.volume_bytes, last),
            How::Compact(ranks) => packed(offset_bytes, ranks).ok_or_else(|| {
                let what = format!("a {op} at {offset_bytes} that the first pass did not see");
                Complaint::new(what, "leave the trace alone while it is replayed")
            })?,
        };
        Ok(Request { offset_bytes: fitted, ..request })
    }
}

/// A page of the volume for a page of the trace, and the same place in it, at most `last`.
fn scaled(offset: u64, span: u64, volume: u64, last: u64) -> u64 {
    let (page, within) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
    let scaled = u128::from(page * PAGE_BYTES) * u128::from(volume) / u128::from(span);
    let scaled = u64::try_from(scaled).unwrap_or(u64::MAX).min(last);
    // The last place that keeps the alignment; where the volume has none, any.
    let highest = last.checked_sub(within).map(|room| room / PAGE_BYTES * PAGE_BYTES + within);
    highest.map_or(last, |highest| (scaled / PAGE_BYTES * PAGE_BYTES + within).min(highest))
}

fn packed(offset: u64, ranks: &Ranks) -> Option<u64> {
    let rank = ranks.rank(offset)?;
    Some(rank * ranks.block_bytes + offset % ranks.block_bytes)
}

fn span_bytes(requests: impl Iterator<Item = Result<Request, TraceError>>) -> Result<u64, TraceError> {
    let mut span = 1;
    for request in requests {
        span = span.max(request?.end_bytes());
    }
    Ok(span)
}

fn touched(
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    volume_bytes: u64,
) -> Result<Ranks, TraceError> {
    let mut regions = BlockSet::new(REGION_BYTES);
    for request in requests {
        let request = request?;
        regions.add(request.offset_bytes..request.end_bytes());
    }
    let ranks = regions.ranks();
    let packed_bytes = u128::from(ranks.len()) * u128::from(ranks.block_bytes);
    if packed_bytes > u128::from(volume_bytes) {
        let what = format!("the regions the trace touches take {packed_bytes} bytes, the volume has {volume_bytes}");
        return Err(Complaint::new(what, "take a larger volume, or fit by wrap or scale").nowhere());
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::adapt::Adapt;

    type List = Vec<Request>;

    fn requests() -> impl Strategy<Value = List> {
        let begin = prop_oneof![0..1u64 << 22, 0..1u64 << 44];
        let one = (begin, 1..1u32 << 17).prop_map(|(offset_bytes, len_bytes)| Request {
            at_ns: 0,
            op: Op::Write,
            offset_bytes,
            len_bytes,
            response_ns: 0,
        });
        prop::collection::vec(one, 1..40)
    }

    fn fit(list: &List, fit: Fit, volume_bytes: u64) -> Result<List, TraceError> {
        let all = || list.iter().copied().map(Ok);
        let fitter = Fitter::new(fit, volume_bytes, || Ok(all()))?;
        all().fitted(fitter).collect()
    }

    proptest! {
        #[test]
        fn fitted_requests_lie_in_the_volume_and_keep_their_length(
            list in requests(), how in 0..4usize, volume in 1u64 << 17..1 << 45,
        ) {
            if let Ok(fitted) = fit(&list, Fit::ALL[how], volume) {
                prop_assert!(fitted.iter().all(|request| request.end_bytes() <= volume));
                let lengths = |list: &List| list.iter().map(|request| request.len_bytes).collect::<Vec<_>>();
                prop_assert_eq!(lengths(&fitted), lengths(&list));
            } else {
                prop_assert!(matches!(Fit::ALL[how], Fit::None | Fit::Compact), "the others fit every volume");
            }
        }

        #[test]
        fn what_fits_stays_where_it_is(list in requests()) {
            for how in [Fit::None, Fit::Wrap] {
                prop_assert_eq!(&fit(&list, how, 1 << 45).expect("room enough"), &list);
            }
        }

        #[test]
        fn scaling_keeps_alignment_and_order(list in requests(), volume in 1u64 << 20..1 << 46) {
            let fitted = fit(&list, Fit::Scale, volume).expect("fits every volume");
            let pairs: BTreeMap<u64, u64> =
                list.iter().zip(&fitted).map(|(from, to)| (from.offset_bytes / 4096, to.offset_bytes / 4096)).collect();
            // Only where a request would cross the end does its length move it.
            let bound = (volume - (1 << 17)) / 4096 - 1;
            prop_assert!(pairs.values().filter(|page| **page < bound).is_sorted());
            for (from, to) in list.iter().zip(&fitted) {
                prop_assert_eq!(from.offset_bytes % 4096, to.offset_bytes % 4096);
            }
        }

        #[test]
        fn compaction_keeps_order_and_distances_within_regions(list in requests()) {
            let fitted = fit(&list, Fit::Compact, 1 << 45).expect("room enough");
            // Every region touched by 1 MiB, and no more.
            prop_assert!(fitted.iter().all(|request| request.end_bytes() <= (2 * list.len() as u64) << 20));
            for (a, to_a) in list.iter().zip(&fitted) {
                for (b, to_b) in list.iter().zip(&fitted) {
                    let (from, to) = (a.offset_bytes.cmp(&b.offset_bytes), to_a.offset_bytes.cmp(&to_b.offset_bytes));
                    prop_assert_eq!(from, to);
                    if a.offset_bytes >> 20 == b.offset_bytes >> 20 {
                        let distance = |a: &Request, b: &Request| a.offset_bytes.abs_diff(b.offset_bytes);
                        prop_assert_eq!(distance(a, b), distance(to_a, to_b));
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_place() {
        let write = |offset_bytes| Request { at_ns: 0, op: Op::Write, offset_bytes, len_bytes: 4096, response_ns: 0 };
        let list = vec![write(0), write(1 << 30)];
        let said = |how, volume| fit(&list, how, volume).expect_err("refused").to_string();
        assert_eq!(
            said(Fit::None, 1 << 30),
            "request 2: a write at 1073741824 ends at 1073745920, beyond the volume's 1073741824 bytes; \
             take a larger volume, or fit by wrap, scale or compact"
        );
        let named = |how, volume| fit(&list, how, volume).expect_err("refused").of_trace("t.csv").to_string();
        assert!(named(Fit::None, 1 << 30).starts_with("t.csv: request 2: a write at 1073741824"));
        assert!(named(Fit::Compact, 1 << 20).starts_with("t.csv: the regions the trace touches"));
        assert!(said(Fit::Compact, 1 << 20).starts_with("the regions the trace touches take 2097152 bytes"));
        assert!(said(Fit::Wrap, 512).starts_with("request 1: a write of 4096 bytes for a volume of 512 bytes; "));
        assert_eq!("scale".parse(), Ok(Fit::Scale));
        assert!("fold".parse::<Fit>().expect_err("unknown").to_string().contains("none, wrap, scale and compact"));
    }
}
