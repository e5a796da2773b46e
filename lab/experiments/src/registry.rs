//! All experiments there are.

use crate::experiment::About;
use crate::plan::Listed;
use anyhow::{Result, bail};

/// Every experiment, in the order of the list.
const ALL: &[&dyn Listed] = &[
    &crate::device_model::DeviceModel::TRUE,
    &crate::trace_anatomy::TraceAnatomy,
    &crate::snapshot::SnapshotMessage { costs: crate::snapshot::Costs::PAPER },
    &crate::snapshot::SnapshotMethods { costs: crate::snapshot::Costs::PAPER },
    &crate::array_load::ArrayLoad,
    &crate::array::ArrayResponse,
    &crate::array::ArrayRebuild,
    &crate::tier::TierPolicies,
    &crate::tier::TierTraces,
    &crate::replicate::Contention { model: crate::replicate::Model::PAPER },
    &crate::replicate::Balance::of(crate::replicate::Model::PAPER),
    &crate::replicate::Real,
    &crate::object_stores::ObjectStores,
];

/// What every experiment is about.
pub fn list() -> Vec<About> {
    ALL.iter().map(|experiment| experiment.about()).collect()
}

/// How like two names are, 0 to 1, of which one may have been meant by the other.
const LIKE: f64 = 0.75;

/// The experiments of these names; an unknown one is told with the nearest that is like it.
pub fn named(names: &[String]) -> Result<Vec<&'static dyn Listed>> {
    names.iter().map(|name| one(name)).collect()
}

fn one(name: &str) -> Result<&'static dyn Listed> {
    if let Some(listed) = ALL.iter().find(|listed| listed.about().name == name) {
        return Ok(*listed);
    }
    let near = ALL.iter().map(|listed| listed.about().name).map(|known| (strsim::jaro_winkler(name, known), known));
    let near = near.filter(|(likeness, _)| *likeness > LIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = near.map_or(String::new(), |(_, known)| format!("did you mean {known}? "));
    bail!("no experiment {name}: {meant}`kura lab list` lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_told_with_the_nearest() {
        let names: Vec<String> = list().iter().map(|about| about.name.to_owned()).collect();
        assert_eq!(named(&names).unwrap().len(), names.len());
        let error = named(&["device-modle".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("device-modle") && error.contains("device-model?"), "{error}");
        let error = named(&["nope".to_owned()]).err().unwrap().to_string();
        assert_eq!(error, "no experiment nope: `kura lab list` lists them");
    }
}
