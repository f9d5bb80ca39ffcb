//! Image garbage collection: removes unused images when the disk fills up, least recently used first.

use std::collections::HashSet;

use knarr_cri::messages::{ContainerFilter, Image};
use std::time::Duration;
use tokio::time::Instant;

use crate::context::Context;
use crate::filesystem::usage_of;

/// A recently used image may be needed again soon.
const MIN_AGE: Duration = Duration::from_secs(120);

/// Frees space if the image file system is fuller than the high threshold. Returns the freed bytes; `all` removes every
/// unused image.
pub async fn collect_garbage(context: &Context, all: bool) -> Result<u64, String> {
    let info = context.runtime.image_fs_info().await.map_err(|error| error.to_string())?;
    let point = info.image_filesystems.first().and_then(|usage| usage.fs_id.as_ref()).map(|id| id.mountpoint.clone());
    let Some(point) = point else { return Ok(0) };
    let Some(usage) = usage_of(std::path::Path::new(&point)) else { return Ok(0) };
    let percent = (usage.available * 100).checked_div(usage.capacity).map_or(0, |free| 100 - free);
    let (high, low) = (context.settings.image_gc_high_percent, context.settings.image_gc_low_percent);
    if !all && (high >= 100 || percent < u64::from(high)) {
        return Ok(0);
    }
    let low = u64::from(low.min(high));
    let bytes_to_free =
        if all { u64::MAX } else { (usage.capacity * (100 - low) / 100).saturating_sub(usage.available) };
    let images = context.runtime.list_images().await.map_err(|error| error.to_string())?;
    context.images.remove_stale_records(context, images.iter().map(|image| image.id.as_str()));
    let containers =
        context.runtime.list_containers(ContainerFilter::default()).await.map_err(|error| error.to_string())?;
    let pinned = context.runtime.pinned_images().await.map_err(|error| error.to_string())?;
    let images = images.into_iter().filter(|image| !is_pinned(image, &pinned)).collect();
    let used: HashSet<String> = containers.into_iter().map(|container| container.image_ref).collect();
    let mut freed = 0;
    for image in choose(images, &used, |id| context.images.last_used(id), Instant::now(), bytes_to_free) {
        match context.runtime.remove_image(&image.id).await {
            Ok(()) => {
                freed += image.size;
                context.metrics.count("kubelet_image_garbage_collected_total", &[("reason", "space")]);
            }
            Err(error) => tracing::warn!(%error, image = image.id, "cannot remove an image"),
        }
    }
    Ok(freed)
}

/// Whether the image is pinned by any of its names.
fn is_pinned(image: &Image, pinned: &HashSet<String>) -> bool {
    image.pinned || image.repo_tags.iter().chain(&image.repo_digests).any(|name| pinned.contains(name))
}

fn choose(
    images: Vec<Image>,
    used: &HashSet<String>,
    last_used: impl Fn(&str) -> Option<Instant>,
    now: Instant,
    bytes_to_free: u64,
) -> Vec<Image> {
    let mut unused: Vec<Image> = images
        .into_iter()
        .filter(|image| !used.contains(&image.id))
        .filter(|image| !image.repo_tags.iter().any(|tag| tag == knarr_cri::containerd::PAUSE_IMAGE))
        .filter(|image| last_used(&image.id).is_none_or(|at| now.saturating_duration_since(at) >= MIN_AGE))
        .collect();
    unused.sort_by_key(|image| last_used(&image.id));
    let mut sum = 0u64;
    unused
        .into_iter()
        .take_while(|image| {
            let needed = sum < bytes_to_free;
            sum = sum.saturating_add(image.size);
            needed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_images_stay() {
        let pinned = HashSet::from(["localhost/a:1".to_string()]);
        let image = |tags: &[&str], pinned| Image {
            repo_tags: tags.iter().map(ToString::to_string).collect(),
            pinned,
            ..Default::default()
        };
        for (image, expected) in [
            (image(&["docker.io/library/b:1", "localhost/a:1"], false), true),
            (image(&["docker.io/library/b:1"], false), false),
            (image(&["docker.io/library/b:1"], true), true),
            (image(&[], false), false),
        ] {
            assert_eq!(is_pinned(&image, &pinned), expected, "{image:?}");
        }
    }

    #[test]
    fn the_longest_unused_go_first_and_no_more_than_needed() {
        let image = |id: &str, size| Image { id: id.into(), size, ..Default::default() };
        let images = vec![image("new", 10), image("old", 10), image("used", 10), image("just", 10)];
        let used = HashSet::from(["used".to_string()]);
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let last = |id: &str| match id {
            "new" => Some(at(500)),
            "just" => Some(at(990)),
            _ => None,
        };
        let names = |bytes_to_free| -> Vec<String> {
            choose(images.clone(), &used, last, at(1000), bytes_to_free).into_iter().map(|image| image.id).collect()
        };
        assert_eq!(names(5), ["old"]);
        assert_eq!(names(15), ["old", "new"]);
        assert_eq!(names(0), Vec::<String>::new());
    }
}
