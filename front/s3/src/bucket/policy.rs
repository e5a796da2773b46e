//! Bucket policies: who else may do what. Pure: a document and a question in, an answer out.

use crate::wildcard;
use serde::Deserialize;
use serde_json::Value;

/// The longest policy, as in S3.
const LIMIT_BYTES: usize = 20 << 10;
/// Before a bucket's name in a resource.
const BUCKETS: &str = "arn:aws:s3:::";
/// Stands for every key; none has this name.
const KEYS: &str = "/*";

/// A bucket's policy.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// As it was given.
    pub text: String,
    statements: Vec<Statement>,
}

#[derive(Clone, Debug)]
struct Statement {
    allows: bool,
    /// As they were given.
    principals: Vec<String>,
    actions: Vec<String>,
    resources: Vec<String>,
}

/// What a policy says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It must not be.
    Denied,
    /// It may be.
    Allowed,
    /// Nothing.
    Silent,
}

/// Why a policy is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Malformed(String),
    Unsupported(&'static str),
}

/// A request, as a policy sees it.
pub(crate) struct Question<'a> {
    /// Identifier and name of the key; none is a request without one.
    pub key: Option<(&'a str, &'a str)>,
    /// Such as `s3:GetObject`.
    pub action: &'a str,
    pub bucket: &'a str,
    pub object: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    statement: OneOrMany<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    // First: a value that is any is also a list.
    Many(Vec<T>),
    One(T),
}

impl<T> OneOrMany<T> {
    fn all(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(all) => all,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct RawStatement {
    #[serde(rename = "Sid")]
    _sid: Option<String>,
    effect: String,
    principal: Option<Value>,
    action: Option<OneOrMany<String>>,
    resource: Option<OneOrMany<String>>,
}

impl Policy {
    /// The policy that is to be set on this bucket: all of it is understood.
    pub fn new(text: &str, bucket: &str) -> Result<Self, Refused> {
        let policy = Self::parse(text, bucket)?;
        policy.statements.iter().try_for_each(Statement::check)?;
        Ok(policy)
    }

    /// The policy in this text, for this bucket. One that is stored may say what [`Policy::new`] refuses: that closes no bucket.
    pub fn parse(text: &str, bucket: &str) -> Result<Self, Refused> {
        if text.len() > LIMIT_BYTES {
            return Err(Refused::Malformed(format!("a policy has at most {LIMIT_BYTES} bytes, not {}", text.len())));
        }
        let malformed = |error: serde_json::Error| Refused::Malformed(error.to_string());
        let document: Document = serde_json::from_str(text).map_err(malformed)?;
        let mut statements = Vec::new();
        for value in document.statement.all() {
            for (name, what) in [
                ("Condition", "a condition in a policy"),
                ("NotPrincipal", "NotPrincipal in a policy"),
                ("NotAction", "NotAction in a policy"),
                ("NotResource", "NotResource in a policy"),
            ] {
                if value.get(name).is_some() {
                    return Err(Refused::Unsupported(what));
                }
            }
            statements.push(Statement::of(serde_json::from_value(value).map_err(malformed)?, bucket)?);
        }
        if statements.is_empty() {
            return Err(Refused::Malformed("a policy has a statement at least".to_owned()));
        }
        Ok(Self { text: text.to_owned(), statements })
    }

    /// True where it could allow a key, or who has none, one of these actions.
    pub fn could_allow(&self, key: Option<(&str, &str)>, actions: &[&str]) -> bool {
        let allows = |statement: &Statement| {
            statement.allows && statement.means(key) && actions.iter().any(|action| statement.is_about(action))
        };
        self.statements.iter().any(allows)
    }

    /// What it says: a denial counts above all.
    pub fn answer(&self, question: &Question<'_>) -> Verdict {
        let mut verdict = Verdict::Silent;
        for statement in self.statements.iter().filter(|statement| statement.applies(question)) {
            if !statement.allows {
                return Verdict::Denied;
            }
            verdict = Verdict::Allowed;
        }
        verdict
    }

    /// True when everybody is allowed something.
    pub fn is_public(&self) -> bool {
        let everybody = |statement: &Statement| statement.principals.iter().any(|principal| principal == "*");
        self.statements.iter().any(|statement| statement.allows && everybody(statement))
    }
}

impl Statement {
    fn of(raw: RawStatement, bucket: &str) -> Result<Self, Refused> {
        let malformed = |text: &str| Refused::Malformed(text.to_owned());
        let allows = match raw.effect.as_str() {
            "Allow" => true,
            "Deny" => false,
            _ => return Err(malformed("Effect is Allow or Deny")),
        };
        let principals = principals(raw.principal.ok_or_else(|| malformed("a statement has a Principal"))?)?;
        let actions = raw.action.ok_or_else(|| malformed("a statement has an Action"))?.all();
        let resources = raw.resource.ok_or_else(|| malformed("a statement has a Resource"))?.all();
        if actions.iter().any(|action| action != "*" && !action.starts_with("s3:")) {
            return Err(malformed("an Action is * or begins with s3:"));
        }
        let mut names = Vec::new();
        for resource in resources {
            let name = resource.strip_prefix(BUCKETS).unwrap_or(&resource);
            let own = name.split('/').next().unwrap_or_default();
            if !like(own, bucket) && own != "*" {
                return Err(Refused::Malformed(format!("the Resource {resource} is not of bucket {bucket}")));
            }
            names.push(name.to_owned());
        }
        Ok(Self { allows, principals, actions, resources: names })
    }

    /// Refuses what means something elsewhere, and nobody or nothing here: a denial of it would never count.
    fn check(&self) -> Result<(), Refused> {
        if self.principals.iter().chain(&self.resources).any(|text| text.contains("${")) {
            return Err(Refused::Unsupported("a variable (${...}) in a policy"));
        }
        if !self.principals.iter().all(|principal| is_of_keys(principal)) {
            let what = "a principal other than *, or keys by identifier or name, alone or in arn:aws:iam:::user/NAME,";
            return Err(Refused::Unsupported(what));
        }
        Ok(())
    }

    /// True when its principals are this key, or who has none, among others.
    fn means(&self, key: Option<(&str, &str)>) -> bool {
        let is_meant = |principal: &String| {
            let own = own(principal);
            principal == "*" || key.is_some_and(|(id, name)| own == id || own == name || own == KEYS)
        };
        self.principals.iter().any(is_meant)
    }

    fn is_about(&self, action: &str) -> bool {
        self.actions.iter().any(|pattern| like(&pattern.to_lowercase(), &action.to_lowercase()))
    }

    fn applies(&self, question: &Question<'_>) -> bool {
        let resource = match question.object {
            Some(object) => format!("{}/{object}", question.bucket),
            None => question.bucket.to_owned(),
        };
        self.means(question.key)
            && self.is_about(question.action)
            && self.resources.iter().any(|pattern| like(pattern, &resource))
    }
}

/// Access keys' identifiers or names: alone, or at the end of an ARN.
fn principals(value: Value) -> Result<Vec<String>, Refused> {
    let malformed =
        || Refused::Malformed("a Principal is \"*\" or {\"AWS\": [...]} of access keys or their names".to_owned());
    let named = match value {
        Value::String(all) if all == "*" => return Ok(vec![all]),
        Value::Object(mut kinds) if kinds.len() == 1 => kinds.remove("AWS").ok_or_else(malformed)?,
        _ => return Err(malformed()),
    };
    let named: OneOrMany<String> = serde_json::from_value(named).map_err(|_| malformed())?;
    let named = named.all();
    // Keys need no name: a principal of none would be all of these.
    if named.iter().any(|name| own(name).is_empty()) { Err(malformed()) } else { Ok(named) }
}

/// The key that a principal is, or [`KEYS`].
fn own(principal: &str) -> &str {
    match principal.rsplit('/').next() {
        // At the end of an ARN: every key, but nobody without one.
        Some("*") if principal != "*" => KEYS,
        own => own.unwrap_or(principal),
    }
}

/// True for what can be keys: not an account, a role, or names by a pattern.
fn is_of_keys(principal: &str) -> bool {
    let user = principal.strip_prefix("arn:aws:iam::").and_then(|arn| arn.split_once(":user/"));
    match user {
        Some((_, name)) => name == "*" || !name.contains('*'),
        None => {
            let is_account = principal.len() == 12 && principal.bytes().all(|byte| byte.is_ascii_digit());
            let is_name = !principal.contains(['*', '/']) && !principal.starts_with("arn:");
            principal == "*" || is_name && !is_account
        }
    }
}

/// True when the text fits the pattern, in which `*` is anything and `?` any one character.
fn like(pattern: &str, text: &str) -> bool {
    wildcard::fits(pattern, text, Some('?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(statement: &str) -> Result<Policy, Refused> {
        Policy::parse(&format!(r#"{{"Version": "2012-10-17", "Statement": {statement}}}"#), "b")
    }

    const READ: &str = r#"[{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/pub/*"},
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/ann"}, "Action": ["s3:Put*", "s3:ListBucket"],
         "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"]},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::b/secret/*"}]"#;

    #[test]
    fn a_denial_counts_above_all_and_what_is_not_named_is_not_said() {
        let policy = policy(READ).unwrap();
        let cases = [
            (None, "s3:GetObject", Some("pub/a"), Verdict::Allowed),
            (None, "s3:GetObject", Some("other"), Verdict::Silent),
            (None, "s3:PutObject", Some("pub/a"), Verdict::Silent),
            (Some("ann"), "s3:PutObject", Some("pub/a"), Verdict::Allowed),
            (Some("ann"), "s3:ListBucket", None, Verdict::Allowed),
            (Some("bob"), "s3:ListBucket", None, Verdict::Silent),
            (Some("ann"), "s3:PutObject", Some("secret/a"), Verdict::Denied),
        ];
        for (key, action, object, verdict) in cases {
            let key = key.map(|name| ("KURA1", name));
            let question = Question { key, action, bucket: "b", object };
            assert_eq!(policy.answer(&question), verdict, "{key:?} {action} {object:?}");
        }
        assert!(policy.is_public());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let cases = [
            "[]",
            r#"{"Effect": "Maybe", "Principal": "*", "Action": "s3:*", "Resource": "b"}"#,
            r#"{"Effect": "Allow", "Action": "s3:*", "Resource": "b"}"#,
            r#"{"Effect": "Allow", "Principal": "ann", "Action": "s3:*", "Resource": "b"}"#,
            r#"{"Effect": "Allow", "Principal": "*", "Action": "ec2:*", "Resource": "b"}"#,
            r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::c/*"}"#,
            r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "b", "Colour": 1}"#,
        ];
        for text in cases {
            assert!(matches!(policy(text), Err(Refused::Malformed(_))), "{text}");
        }
        let condition = r#"{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "b", "Condition": {}}"#;
        assert!(matches!(policy(condition), Err(Refused::Unsupported(_))));
        assert!(matches!(Policy::parse("nonsense", "b"), Err(Refused::Malformed(_))));
        let set = |principal: &str, resource: &str| {
            let text = format!(
                r#"{{"Statement": {{"Effect": "Deny", "Principal": {{"AWS": {principal:?}}}, "Action": "s3:*",
                    "Resource": {resource:?}}}}}"#
            );
            // Where it is stored already, it closes no bucket.
            assert!(Policy::parse(&text, "b").is_ok(), "{text}");
            Policy::new(&text, "b").map(|_| ())
        };
        for principal in
            ["*", "ann", "KURA1", "arn:aws:iam:::user/ann", "arn:aws:iam::1:user/a/ann", "arn:aws:iam:::user/*"]
        {
            assert_eq!(set(principal, "b/*"), Ok(()), "{principal}");
        }
        for principal in [
            "123456789012",
            "arn:aws:iam::123456789012:root",
            "arn:aws:iam::123456789012:role/ann",
            "arn:aws:sts::123456789012:assumed-role/a/ann",
            "arn:aws:iam:::user/a/*",
            "arn:aws:iam:::user/a*",
            "a*",
            "a/*",
            "${aws:username}",
        ] {
            assert!(matches!(set(principal, "b/*"), Err(Refused::Unsupported(_))), "{principal}");
        }
        assert!(matches!(set("*", "arn:aws:s3:::b/${aws:username}/*"), Err(Refused::Unsupported(_))));
    }

    #[test]
    fn one_character_is_one_whatever_its_bytes() {
        let deny =
            r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/payroll-?"}"#;
        let policy = policy(deny).unwrap();
        let answer = |object| policy.answer(&Question { key: None, action: "s3:GetObject", bucket: "b", object });
        for object in ["payroll-u", "payroll-\u{fc}", "payroll-\u{20ac}"] {
            assert_eq!(answer(Some(object)), Verdict::Denied, "{object}");
        }
        assert_eq!(answer(Some("payroll-\u{fc}\u{fc}")), Verdict::Silent);
    }
}
