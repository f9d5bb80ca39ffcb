//! Validation of the conversion strategy of a definition.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::{checks, webhook};

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
        if config.is_null() {
            errors.required(&config_at, "required when strategy is set to Webhook");
        } else {
            webhook::validate_client_config(errors, &config_at, config);
        }
        webhook::validate_review_versions(errors, &reviews_at, reviews, "", known_reviews);
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
    webhook::has_known_review(conversion.items(&["webhook", "conversionReviewVersions"]))
}
