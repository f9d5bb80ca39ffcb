//! Reads a whole database.

use std::cell::Cell;

use super::{
    BRANCH, Bucket, Buckets, ELEMENT_BYTES, HEADER_BYTES, IS_BUCKET, Invalid, LEAF, MAGIC, META_BYTES, VERSION,
    checksum,
};

/// Trees of real databases have a few levels.
const MAX_DEPTH: usize = 32;

/// The buckets of a database. Nested buckets, which etcd does not use, are an error.
pub(in crate::etcd) fn read(file: &[u8]) -> Result<Buckets, Invalid> {
    let pages = Pages::open(file)?;
    let mut buckets = Buckets::new();
    pages.walk(pages.root, 0, &mut |flags, key, value| {
        if flags & IS_BUCKET == 0 {
            return Err(Invalid("a value outside of any bucket"));
        }
        buckets.insert(key.to_vec(), pages.bucket(value)?);
        Ok(())
    })?;
    Ok(buckets)
}

struct Pages<'a> {
    file: &'a [u8],
    page_size: usize,
    root: u64,
    /// Every page belongs to one tree, at one place. Branches that share pages would be walked without an end.
    unread: Cell<usize>,
}

type Visit<'v> = dyn FnMut(u32, &[u8], &[u8]) -> Result<(), Invalid> + 'v;

impl<'a> Pages<'a> {
    /// Finds the newer of the two valid meta pages.
    fn open(file: &'a [u8]) -> Result<Self, Invalid> {
        // The second one's place depends on the page size, which only a meta page contains.
        let sizes = (0..=6).map(|power| 4096usize << power);
        let metas = std::iter::once(0).chain(sizes).filter_map(|offset| meta(file, offset));
        let (_, page_size, root) = metas.max_by_key(|(transaction, ..)| *transaction).ok_or(Invalid("no meta page"))?;
        Ok(Self { file, page_size, root, unread: Cell::new(file.len() / page_size) })
    }

    fn bucket(&self, value: &[u8]) -> Result<Bucket, Invalid> {
        let mut bucket = Bucket::new();
        let mut insert = |flags: u32, key: &[u8], value: &[u8]| {
            if flags & IS_BUCKET != 0 {
                return Err(Invalid("a bucket in a bucket"));
            }
            bucket.insert(key.to_vec(), value.to_vec());
            Ok(())
        };
        match number64(value, 0)? {
            // A small bucket is a page within the value.
            0 => leaf(value.get(16..).ok_or(Invalid("a bucket without a page"))?, &mut insert)?,
            root => self.walk(root, 0, &mut insert)?,
        }
        Ok(bucket)
    }

    fn walk(&self, page: u64, depth: usize, visit: &mut Visit<'_>) -> Result<(), Invalid> {
        if depth > MAX_DEPTH {
            return Err(Invalid("a tree without an end"));
        }
        let bytes = self.page(page)?;
        match number16(bytes, 8)? {
            LEAF => leaf(bytes, visit),
            BRANCH => {
                for index in 0..usize::from(number16(bytes, 10)?) {
                    self.walk(number64(bytes, HEADER_BYTES + index * ELEMENT_BYTES + 8)?, depth + 1, visit)?;
                }
                Ok(())
            }
            _ => Err(Invalid("a page of another type in a tree")),
        }
    }

    fn page(&self, number: u64) -> Result<&'a [u8], Invalid> {
        self.unread.set(self.unread.get().checked_sub(1).ok_or(Invalid("a page in two places"))?);
        let outside = Invalid("a page beyond the end of the file");
        let start =
            usize::try_from(number).ok().and_then(|number| number.checked_mul(self.page_size)).ok_or(outside)?;
        let bytes = self.file.get(start..).ok_or(Invalid("a page beyond the end of the file"))?;
        let length = (number32(bytes, 12)? as usize + 1).saturating_mul(self.page_size);
        bytes.get(..length).ok_or(Invalid("a page beyond the end of the file"))
    }
}

fn meta(file: &[u8], offset: usize) -> Option<(u64, usize, u64)> {
    let meta = file.get(offset + HEADER_BYTES..offset + HEADER_BYTES + META_BYTES + 8)?;
    let is_valid = number32(meta, 0).ok()? == MAGIC
        && number32(meta, 4).ok()? == VERSION
        && number64(meta, META_BYTES).ok()? == checksum(&meta[..META_BYTES]);
    let page_size = number32(meta, 8).ok()? as usize;
    (is_valid && page_size >= 1024 && page_size.is_power_of_two()).then_some((
        number64(meta, 48).ok()?,
        page_size,
        number64(meta, 16).ok()?,
    ))
}

fn leaf(page: &[u8], visit: &mut Visit<'_>) -> Result<(), Invalid> {
    for index in 0..usize::from(number16(page, 10)?) {
        let element = HEADER_BYTES + index * ELEMENT_BYTES;
        let key = element + number32(page, element + 4)? as usize;
        let value = key + number32(page, element + 8)? as usize;
        let end = value + number32(page, element + 12)? as usize;
        let (Some(key), Some(value)) = (page.get(key..value), page.get(value..end)) else {
            return Err(Invalid("an element beyond the end of its page"));
        };
        visit(number32(page, element)?, key, value)?;
    }
    Ok(())
}

fn number16(bytes: &[u8], at: usize) -> Result<u16, Invalid> {
    let found = bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    found.map(u16::from_le_bytes).ok_or(Invalid("the file ends too early"))
}

fn number32(bytes: &[u8], at: usize) -> Result<u32, Invalid> {
    let found = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    found.map(u32::from_le_bytes).ok_or(Invalid("the file ends too early"))
}

fn number64(bytes: &[u8], at: usize) -> Result<u64, Invalid> {
    let found = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    found.map(u64::from_le_bytes).ok_or(Invalid("the file ends too early"))
}
