//! The `--oidc-*` flags: one issuer without a configuration file.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::signature::Algorithm;

#[derive(Clone, Debug, Default)]
pub struct OidcFlags {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    pub username_claim: Option<String>,
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub signing_algs: Vec<String>,
    pub required_claims: Vec<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OidcFlagsError {
    #[error("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")]
    Incomplete,
    #[error("oidc: unsupported signing alg: {0:?}")]
    Algorithm(String),
    #[error("invalid argument {0:?} for \"--oidc-required-claim\" flag: malformed pair, expect string=string")]
    Claim(String),
    #[error("open {0}: {1}")]
    File(PathBuf, String),
}

impl OidcFlags {
    pub fn is_set(&self) -> bool {
        !self.issuer_url.is_empty()
            || !self.client_id.is_empty()
            || self.ca_file.is_some()
            || self.username_claim.is_some()
            || !self.username_prefix.is_empty()
            || !self.groups_claim.is_empty()
            || !self.groups_prefix.is_empty()
            || !self.signing_algs.is_empty()
            || !self.required_claims.is_empty()
    }

    pub fn algorithms(&self) -> Result<Vec<Algorithm>, OidcFlagsError> {
        if self.signing_algs.is_empty() {
            return Ok(vec![Algorithm::Rs256]);
        }
        let of = |name: &String| Algorithm::of_name(name).ok_or_else(|| OidcFlagsError::Algorithm(name.clone()));
        self.signing_algs.iter().map(of).collect()
    }

    /// The same as an issuer of an AuthenticationConfiguration; `None` if no flag is set.
    pub fn issuer(&self) -> Result<Option<Value>, OidcFlagsError> {
        if !self.is_set() {
            return Ok(None);
        }
        if self.issuer_url.is_empty() || self.client_id.is_empty() {
            return Err(OidcFlagsError::Incomplete);
        }
        let claim = self.username_claim.as_deref().unwrap_or("sub");
        // Names of other claims than addresses are unique only within an issuer.
        let prefix = match self.username_prefix.as_str() {
            "" if claim != "email" => format!("{}#", self.issuer_url),
            "-" => String::new(),
            prefix => prefix.to_owned(),
        };
        let mut issuer = json!({
            "issuer": {"url": self.issuer_url, "audiences": [self.client_id]},
            "claimMappings": {"username": {"claim": claim, "prefix": prefix}},
        });
        if !self.groups_claim.is_empty() {
            issuer["claimMappings"]["groups"] = json!({"claim": self.groups_claim, "prefix": self.groups_prefix});
        }
        if let Some(path) = &self.ca_file {
            let text =
                std::fs::read_to_string(path).map_err(|error| OidcFlagsError::File(path.clone(), error.to_string()))?;
            issuer["issuer"]["certificateAuthority"] = text.into();
        }
        let rules = self.required_claims.iter().map(|pair| match pair.split_once('=') {
            Some((claim, value)) => Ok(json!({"claim": claim.trim(), "requiredValue": value.trim()})),
            None => Err(OidcFlagsError::Claim(pair.clone())),
        });
        let rules: Vec<Value> = rules.collect::<Result<_, _>>()?;
        if !rules.is_empty() {
            issuer["claimValidationRules"] = rules.into();
        }
        Ok(Some(issuer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_an_issuer() {
        assert_eq!(OidcFlags::default().issuer(), Ok(None));
        let some = OidcFlags { issuer_url: "https://a".into(), client_id: "c".into(), ..OidcFlags::default() };
        let prefix = |flags: &OidcFlags| {
            flags.issuer().unwrap().unwrap()["claimMappings"]["username"]["prefix"].as_str().unwrap().to_owned()
        };
        assert_eq!(prefix(&some), "https://a#");
        assert_eq!(prefix(&OidcFlags { username_claim: Some("email".into()), ..some.clone() }), "");
        assert_eq!(prefix(&OidcFlags { username_prefix: "-".into(), ..some.clone() }), "");
        assert_eq!(prefix(&OidcFlags { username_prefix: "p:".into(), ..some.clone() }), "p:");
        assert_eq!(some.algorithms(), Ok(vec![Algorithm::Rs256]));
        let none = OidcFlags { signing_algs: vec!["HS256".into()], ..some.clone() };
        assert_eq!(none.algorithms().unwrap_err().to_string(), "oidc: unsupported signing alg: \"HS256\"");
        let only = OidcFlags { groups_claim: "g".into(), ..OidcFlags::default() };
        assert_eq!(only.issuer(), Err(OidcFlagsError::Incomplete));
        let required = OidcFlags { required_claims: vec!["hd=x=y".into()], ..some.clone() };
        let rules = &required.issuer().unwrap().unwrap()["claimValidationRules"];
        assert_eq!(*rules, json!([{"claim": "hd", "requiredValue": "x=y"}]));
        assert!(OidcFlags { required_claims: vec!["hd".into()], ..some }.issuer().is_err());
    }
}
