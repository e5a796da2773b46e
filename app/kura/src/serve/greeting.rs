//! What a start says: where the volumes are, and what to try.

use crate::serve::s3;
use crate::size::Size;
use kura_controller::Replayed;
use kura_s3::Key;
use std::fmt;
use std::path::Path;

/// What a start says; less than a screen.
pub struct Greeting<'a> {
    /// The data directory.
    pub data: &'a Path,
    /// What the start read again.
    pub replayed: Replayed,
    /// The volumes' names.
    pub volumes: Vec<&'a str>,
    /// NBD URIs, in which `{volume}` stands for a volume's name.
    pub nbd: &'a [String],
    /// The REST door's URL.
    pub admin: Option<&'a str>,
    /// The S3 door's URL.
    pub s3: Option<&'a str>,
    /// A key that was made just now: nobody is told its secret again.
    pub key: Option<&'a Key>,
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kura {} on {}", env!("CARGO_PKG_VERSION"), self.data.display())?;
        let Replayed { entries, bytes } = self.replayed;
        if entries > 0 {
            writeln!(
                f,
                "replayed {entries} journal entries with {} of data: the last server did not shut down cleanly",
                Size(bytes)
            )?;
        }
        let known = || self.volumes.iter().filter(|name| !s3::is_ours(name));
        let known = known().find(|name| **name == "demo").or(known().next());
        let volume = known.unwrap_or(&"VOLUME");
        let uris: Vec<_> = self.nbd.iter().map(|uri| reachable(uri).replace("{volume}", volume)).collect();
        let (admin, s3) = (self.admin.map(reachable), self.s3.map(reachable));
        writeln!(f)?;
        uris.iter().try_for_each(|uri| writeln!(f, "  volume  {uri}"))?;
        admin.iter().try_for_each(|url| {
            writeln!(f, "  console {url}/")?;
            writeln!(f, "  REST    {url}/api/v1/openapi.json")
        })?;
        s3.iter().try_for_each(|url| writeln!(f, "  S3      {url}"))?;
        if let Some(key) = self.key {
            writeln!(f, "  key     {} with the secret {} (shown only once)", key.id, key.secret)?;
        }
        // The commands find the socket by themselves where this server's directory is the default one.
        let default = Path::new("kura-data").canonicalize().is_ok_and(|path| path == self.data);
        let server =
            if default { String::new() } else { format!(" --server {}", self.data.join("admin.sock").display()) };
        writeln!(f, "\n  try     kura status{server}")?;
        writeln!(f, "          kura volume create vm1 --size 10G{server}")?;
        if let (Some(_), Some(uri)) = (known, uris.first()) {
            writeln!(f, "          nbdinfo '{uri}'")?;
        }
        let (Some(url), Some(key)) = (&s3, self.key) else {
            return if s3.is_some() {
                writeln!(f, "          kura key create NAME{server}   # for S3 clients")
            } else {
                Ok(())
            };
        };
        writeln!(f, "          export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={}", key.id, key.secret)?;
        writeln!(f, "          aws --endpoint-url {url} s3 cp FILE s3://{}/", s3::DEMO)
    }
}

/// A URI as clients may write it: who listens at all addresses has none to name.
pub fn reachable(uri: &str) -> String {
    uri.replacen("://0.0.0.0:", "://HOST:", 1).replacen("://[::]:", "://HOST:", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uris_can_be_used_as_they_stand() {
        let mut greeting = Greeting {
            data: Path::new("/srv/kura"),
            replayed: Replayed::default(),
            volumes: vec!["a", "demo"],
            nbd: &["nbd://127.0.0.1:10809/{volume}".to_owned()],
            admin: Some("http://127.0.0.1:7400"),
            s3: Some("http://127.0.0.1:9000"),
            key: None,
        };
        let text = greeting.to_string();
        for part in [
            "http://127.0.0.1:9000",
            "nbd://127.0.0.1:10809/demo",
            "kura status --server /srv/kura/admin.sock",
            "http://127.0.0.1:7400/\n",
            "http://127.0.0.1:7400/api",
        ] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
        assert!(!text.contains("replayed") && text.lines().count() <= 24);
        greeting.replayed = Replayed { entries: 3, bytes: 8192 };
        assert!(greeting.to_string().contains("replayed 3 journal entries with 8K"));
        // The store's is nobody's to open.
        greeting.volumes = vec!["objects", "objects@now"];
        let text = greeting.to_string();
        assert!(text.contains("10809/VOLUME") && !text.contains("nbdinfo"), "{text}");
        (greeting.admin, greeting.s3) = (Some("https://0.0.0.0:7400"), Some("https://[::]:9000"));
        let text = greeting.to_string();
        assert!(text.contains("https://HOST:7400/api") && text.contains("https://HOST:9000\n"), "{text}");
    }
}
