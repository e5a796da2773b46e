//! The console: the files of `app/console`, as they are there. Nothing builds them, so what is read is what is served.

use kura_admin::Page;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($path:literal, $media_type:expr) => {
        file!(at concat!("/console/", $path), $path, $media_type)
    };
    (at $at:expr, $path:literal, $media_type:expr) => {
        Page { path: $at, media_type: $media_type, content: include_bytes!(concat!("../../../console/", $path)) }
    };
}

/// All of them, each where browsers ask for it.
pub const PAGES: &[Page] = &[
    file!(at "/", "index.html", HTML),
    file!("console.css", CSS),
    file!("icon.svg", SVG),
    file!("src/api.js", SCRIPT),
    file!("src/chart.js", SCRIPT),
    file!("src/dialog.js", SCRIPT),
    file!("src/format.js", SCRIPT),
    file!("src/heat_map.js", SCRIPT),
    file!("src/history.js", SCRIPT),
    file!("src/html.js", SCRIPT),
    file!("src/main.js", SCRIPT),
    file!("src/pages/copies.js", SCRIPT),
    file!("src/pages/disks.js", SCRIPT),
    file!("src/pages/jobs.js", SCRIPT),
    file!("src/pages/objects.js", SCRIPT),
    file!("src/pages/overview.js", SCRIPT),
    file!("src/pages/tier.js", SCRIPT),
    file!("src/pages/volume_changes.js", SCRIPT),
    file!("src/pages/volumes.js", SCRIPT),
    file!("src/parts.js", SCRIPT),
    file!("src/store.js", SCRIPT),
    file!("vendor/htm.mjs", SCRIPT),
    file!("vendor/preact.mjs", SCRIPT),
    file!("vendor/uPlot.iife.min.js", SCRIPT),
    file!("vendor/uPlot.min.css", CSS),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// What is not for browsers: what a folder is made of, and licences.
    fn is_for_readers(path: &Path) -> bool {
        path.extension().is_none_or(|ending| ending == "md")
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_file_of_the_console_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console");
        let served: BTreeSet<_> = PAGES.iter().map(|page| page.path.to_owned()).collect();
        let there = files(&folder).into_iter().filter(|path| !is_for_readers(path)).map(|path| {
            let path = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
            if path == "index.html" { "/".to_owned() } else { format!("/console/{path}") }
        });
        assert_eq!(served, there.collect());
        assert_eq!(served.len(), PAGES.len());
    }
}
