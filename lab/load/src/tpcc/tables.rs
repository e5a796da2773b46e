//! Where tables and indexes lie: each in a region of its own, one after the other.

/// The scale at which the regions' sizes are told.
const TOLD_WAREHOUSES: u64 = 14;
/// Orders there are at the beginning, by district: a good half of what the regions have room for.
pub(crate) const FIRST_ORDERS: u32 = 82_410;
pub(crate) const DISTRICTS: u32 = 10;
pub(crate) const CUSTOMERS: u32 = 3000;
pub(crate) const ITEMS: u32 = 100_000;
/// Lines of an order, on average: their places are reckoned as if each had as many.
pub(crate) const LINES: u32 = 10;

/// Pages in a row, filled from the front with rows in order of their key; of a clustered index, the level above the rows
/// lies at the back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    first: u32,
    pages: u32,
    rows_per_page: u32,
    /// Pages for which one page of the level above has room; 0 where there is none.
    fanout: u32,
}

/// How a region is made: its size at the told scale, bytes of a row, and of a key in the level above.
struct Shape {
    megabytes: u64,
    row_bytes: u64,
    key_bytes: u64,
    by_warehouse: bool,
}

const fn shape(megabytes: u64, row_bytes: u64, key_bytes: u64) -> Shape {
    Shape { megabytes, row_bytes, key_bytes, by_warehouse: true }
}

const WAREHOUSE: Shape = shape(1, 92, 0);
const DISTRICT: Shape = shape(1, 97, 0);
const CUSTOMER: Shape = shape(320, 665, 30);
const CUSTOMER_INDEX: Shape = shape(14, 28, 0);
const HISTORY: Shape = shape(734, 46, 0);
const NEW_ORDER: Shape = shape(4, 7, 0);
const ORDER: Shape = shape(447, 23, 0);
// Leaves of an index that grows in the middle are two thirds full.
const ORDER_INDEX: Shape = shape(408, 30, 0);
const ORDER_LINE: Shape = shape(8984, 52, 0);
const ITEM: Shape = Shape { megabytes: 10, row_bytes: 86, key_bytes: 0, by_warehouse: false };
const STOCK: Shape = shape(497, 310, 14);

/// The database.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    warehouses: u32,
    page_bytes: u64,
    pages: u32,
    pub(crate) warehouse: Region,
    pub(crate) district: Region,
    pub(crate) customer: Region,
    pub(crate) customer_index: Region,
    pub(crate) history: Region,
    pub(crate) new_order: Region,
    pub(crate) order: Region,
    pub(crate) order_index: Region,
    pub(crate) order_line: Region,
    pub(crate) item: Region,
    pub(crate) stock: Region,
}

impl Tables {
    pub(crate) fn new(warehouses: u32, page_bytes: u64) -> Self {
        let mut pages = 0;
        let mut region = |shape: &Shape| {
            let scale = if shape.by_warehouse { u64::from(warehouses) } else { TOLD_WAREHOUSES };
            let bytes = (shape.megabytes << 20) * scale / TOLD_WAREHOUSES;
            // A page a district at least, for what is cut by districts.
            let least = u64::from(warehouses * DISTRICTS);
            let region = Region {
                first: pages,
                pages: (bytes / page_bytes).max(least) as u32,
                rows_per_page: (page_bytes / shape.row_bytes) as u32,
                fanout: page_bytes.checked_div(shape.key_bytes).unwrap_or(0) as u32,
            };
            pages += region.pages;
            region
        };
        Self {
            warehouse: region(&WAREHOUSE),
            district: region(&DISTRICT),
            customer: region(&CUSTOMER),
            customer_index: region(&CUSTOMER_INDEX),
            history: region(&HISTORY),
            new_order: region(&NEW_ORDER),
            order: region(&ORDER),
            order_index: region(&ORDER_INDEX),
            order_line: region(&ORDER_LINE),
            item: region(&ITEM),
            stock: region(&STOCK),
            warehouses,
            page_bytes,
            pages,
        }
    }

    pub(crate) fn warehouses(&self) -> u32 {
        self.warehouses
    }

    pub(crate) fn districts(&self) -> u32 {
        self.warehouses * DISTRICTS
    }

    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The leaf in which the orders of a customer stand in the index by customer.
    pub(crate) fn order_index_leaf(&self, district: u32, customer: u32) -> u32 {
        let key = u64::from(customer) * u64::from(self.districts()) + u64::from(district);
        let keys = u64::from(CUSTOMERS) * u64::from(self.districts());
        let rows = keys * u64::from(FIRST_ORDERS) / u64::from(CUSTOMERS);
        let leaves = (rows / u64::from(self.order_index.rows_per_page)).clamp(1, u64::from(self.order_index.pages));
        self.order_index.first + (key * leaves / keys) as u32
    }
}

impl Region {
    /// The page of a row.
    pub(crate) fn page(&self, row: u32) -> u32 {
        self.first + row / self.rows_per_page % self.pages
    }

    /// The page above that of a row, in a clustered index.
    pub(crate) fn above(&self, row: u32) -> u32 {
        self.first + self.pages - 1 - (row / self.rows_per_page / self.fanout) % self.pages
    }

    /// The page of a row of one district, where each district's rows lie together with room to grow; and whether
    /// the row is the first in its page. When the room is used up, it is used again from the front.
    pub(crate) fn page_of_district(&self, district: u32, districts: u32, row: u64) -> (u32, bool) {
        let room = self.pages / districts;
        let rows = u64::from(self.rows_per_page);
        (self.first + district * room + (row / rows % u64::from(room)) as u32, row.is_multiple_of(rows))
    }

    /// Rows at the beginning of the page: an append to it makes the page.
    pub(crate) fn is_first(&self, row: u32) -> bool {
        row.is_multiple_of(self.rows_per_page)
    }

    /// Pages from the first to the one after the last.
    #[cfg(test)]
    pub(crate) fn range(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_scale_takes_the_paper_s_room_and_everything_fits() {
        let tables = Tables::new(14, 2048);
        assert_eq!(u64::from(tables.pages()) * 2048, 11_420 << 20);
        let customers = 14 * DISTRICTS * CUSTOMERS;
        for (region, rows) in [(tables.customer, customers), (tables.stock, 14 * ITEMS), (tables.item, ITEMS)] {
            let last = region.page(rows - 1);
            assert!(last < region.range().end && last > region.first + region.pages / 2);
            assert!(region.fanout == 0 || region.above(rows - 1) > last, "the level above has room of its own");
        }
        assert!(tables.customer_index.page(customers - 1) >= tables.customer_index.page(0) + 5000);
        let (first, _) = tables.order_line.page_of_district(139, 140, 0);
        let (last, _) = tables.order_line.page_of_district(139, 140, u64::from(FIRST_ORDERS * LINES));
        assert!(last > first + 20_000 && last < tables.order_line.range().end);
        assert!(tables.order_index.range().contains(&tables.order_index_leaf(139, CUSTOMERS - 1)));
    }
}
