//! Writes a whole database: first the pages of all buckets, each tree from its leaves to its root, then the meta pages.

use std::io::{self, Seek, SeekFrom, Write};

use super::{
    BRANCH, Bucket, Buckets, ELEMENT_BYTES, FREE_LIST, HEADER_BYTES, IS_BUCKET, LEAF, MAGIC, META, META_BYTES, VERSION,
    checksum,
};

const PAGE_SIZE: usize = 4096;
/// Meta pages come first, then the list of free pages, which is empty.
const FREE_LIST_PAGE: u64 = 2;
const FIRST_DATA_PAGE: u64 = 3;

pub(in crate::etcd) fn write(buckets: &Buckets, file: &mut (impl Write + Seek)) -> io::Result<()> {
    file.seek(SeekFrom::Start(FIRST_DATA_PAGE * PAGE_SIZE as u64))?;
    let mut writer = Writer { file, next: FIRST_DATA_PAGE };
    let mut roots = Vec::new();
    for (name, bucket) in buckets {
        let root = writer.tree(&elements(bucket))?;
        // The root page, and a sequence number that etcd does not use.
        roots.push((name.as_slice(), [root.to_le_bytes(), [0; 8]].concat()));
    }
    let top: Vec<Element<'_>> =
        roots.iter().map(|(name, bucket)| Element { flags: IS_BUCKET, key: name, value: bucket }).collect();
    let root = writer.tree(&top)?;
    let end = writer.next;
    file.seek(SeekFrom::Start(0))?;
    for number in 0..2 {
        file.write_all(&meta_page(number, root, end))?;
    }
    let mut free = header(FREE_LIST_PAGE, FREE_LIST, 0, 0).to_vec();
    free.resize(PAGE_SIZE, 0);
    file.write_all(&free)?;
    file.flush()
}

/// An element of a leaf.
struct Element<'a> {
    flags: u32,
    key: &'a [u8],
    value: &'a [u8],
}

fn elements(bucket: &Bucket) -> Vec<Element<'_>> {
    bucket.iter().map(|(key, value)| Element { flags: 0, key, value }).collect()
}

struct Writer<'f, F> {
    file: &'f mut F,
    next: u64,
}

impl<F: Write> Writer<'_, F> {
    /// Writes a tree and returns its root page.
    fn tree(&mut self, elements: &[Element<'_>]) -> io::Result<u64> {
        let mut level: Vec<(&[u8], u64)> = Vec::new();
        for chunk in chunks(elements, |element| element.key.len() + element.value.len()) {
            let first = chunk.first().map_or(&[][..], |element| element.key);
            level.push((first, self.leaf(chunk)?));
        }
        if level.is_empty() {
            return self.leaf(&[]);
        }
        while level.len() > 1 {
            let mut above = Vec::new();
            for chunk in chunks(&level, |(key, _)| key.len()) {
                above.push((chunk[0].0, self.branch(chunk)?));
            }
            level = above;
        }
        Ok(level[0].1)
    }

    fn leaf(&mut self, elements: &[Element<'_>]) -> io::Result<u64> {
        let (mut table, mut data) = (Vec::new(), Vec::new());
        for (index, element) in elements.iter().enumerate() {
            // Positions count from the element itself.
            let position = (elements.len() - index) * ELEMENT_BYTES + data.len();
            for number in [element.flags, position as u32, element.key.len() as u32, element.value.len() as u32] {
                table.extend(number.to_le_bytes());
            }
            data.extend_from_slice(element.key);
            data.extend_from_slice(element.value);
        }
        self.page(LEAF, elements.len(), &[table, data].concat())
    }

    fn branch(&mut self, children: &[(&[u8], u64)]) -> io::Result<u64> {
        let (mut table, mut data) = (Vec::new(), Vec::new());
        for (index, (key, page)) in children.iter().enumerate() {
            let position = (children.len() - index) * ELEMENT_BYTES + data.len();
            table.extend((position as u32).to_le_bytes());
            table.extend((key.len() as u32).to_le_bytes());
            table.extend(page.to_le_bytes());
            data.extend_from_slice(key);
        }
        self.page(BRANCH, children.len(), &[table, data].concat())
    }

    /// Writes a page with as many following pages as its content needs.
    fn page(&mut self, flags: u16, count: usize, content: &[u8]) -> io::Result<u64> {
        let pages = (HEADER_BYTES + content.len()).div_ceil(PAGE_SIZE);
        let number = self.next;
        self.file.write_all(&header(number, flags, count as u16, pages as u32 - 1))?;
        self.file.write_all(content)?;
        self.file.write_all(&vec![0; pages * PAGE_SIZE - HEADER_BYTES - content.len()])?;
        self.next += pages as u64;
        Ok(number)
    }
}

/// Splits items into pages; each page has at least two, so that every level of a tree is smaller than the one below.
fn chunks<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut chunks = Vec::new();
    let (mut start, mut size) = (0, HEADER_BYTES);
    for (index, item) in items.iter().enumerate() {
        let more = ELEMENT_BYTES + bytes(item);
        if index - start >= 2 && size + more > PAGE_SIZE {
            chunks.push(&items[start..index]);
            (start, size) = (index, HEADER_BYTES);
        }
        size += more;
    }
    if start < items.len() {
        chunks.push(&items[start..]);
    }
    chunks
}

fn header(number: u64, flags: u16, count: u16, overflow: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..10].copy_from_slice(&flags.to_le_bytes());
    header[10..12].copy_from_slice(&count.to_le_bytes());
    header[12..].copy_from_slice(&overflow.to_le_bytes());
    header
}

fn meta_page(number: u64, root: u64, end: u64) -> Vec<u8> {
    let mut meta = Vec::with_capacity(META_BYTES);
    for field in [MAGIC, VERSION, PAGE_SIZE as u32, 0] {
        meta.extend(field.to_le_bytes());
    }
    for field in [root, 0, FREE_LIST_PAGE, end, number] {
        meta.extend(field.to_le_bytes());
    }
    meta.extend(checksum(&meta).to_le_bytes());
    let mut page = header(number, META, 0, 0).to_vec();
    page.extend(meta);
    page.resize(PAGE_SIZE, 0);
    page
}
