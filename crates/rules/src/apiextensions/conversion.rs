//! Validation of the conversion strategy of a definition.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::{checks, webhook};

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// `known_reviews`: whether at least one supported review version is required.
pub fn validate(errors: &mut Errors, path: &Path<'_>, conversion: &Value, known_reviews: bool) {
    if conversion.is_null() {
        return;
    }
    let strategy = conversion.text(&["strategy"]);
    match strategy {
        "" => errors.required(&path.child("strategy"), ""),
        strategy => checks::one_of(errors, &path.child("strategy"), strategy, &["None", "Webhook"]),
    }
    let config = conversion.at(&["webhook", "clientConfig"]);
    let reviews = conversion.at(&["webhook", "conversionReviewVersions"]);
    let (config_at, reviews_at) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy == "Webhook" {
        validate_client_config(errors, &config_at, config);
        validate_reviews(errors, &reviews_at, reviews, known_reviews);
        return;
    }
    let detail = "should not be set when strategy is not set to Webhook";
    if !config.is_null() {
        errors.forbidden(&config_at, detail);
    }
    if !reviews.items(&[]).is_empty() {
        errors.forbidden(&reviews_at, detail);
    }
}

/// Returns whether there are no review versions or at least one supported one.
pub fn has_known_review(conversion: &Value) -> bool {
    let reviews = conversion.items(&["webhook", "conversionReviewVersions"]);
    reviews.is_empty() || reviews.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str().unwrap_or_default()))
}

fn validate_client_config(errors: &mut Errors, path: &Path<'_>, config: &Value) {
    if config.is_null() {
        errors.required(path, "required when strategy is set to Webhook");
        return;
    }
    match (config["url"].as_str(), config.has(&["service"])) {
        (Some(url), false) => webhook::validate_url(errors, &path.child("url"), url, true),
        (None, true) => {
            let service = &config["service"];
            // Kubernetes swaps the two names here.
            let (namespace, name) = (service.text(&["name"]), service.text(&["namespace"]));
            let port = service.integer(&["port"]).unwrap_or(0);
            webhook::validate_service(errors, &path.child("service"), namespace, name, service["path"].as_str(), port);
        }
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn validate_reviews(errors: &mut Errors, path: &Path<'_>, reviews: &Value, known_reviews: bool) {
    let versions: Vec<&str> = reviews.items(&[]).iter().map(|version| version.as_str().unwrap_or_default()).collect();
    if versions.is_empty() {
        errors.required(path, "");
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !seen.insert(*version) {
            errors.invalid(&path.index(index), *version, "duplicate version");
            continue;
        }
        names::check(errors, &path.index(index), version, names::dns_1035_label);
    }
    if known_reviews && !versions.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        errors.invalid(path, reviews.clone(), "must include at least one of v1, v1beta1");
    }
}
