//! The transactions: which pages each of them touches, in which order.

use super::cache::{Access, Cache, Touch};
use super::tables::{CUSTOMERS, DISTRICTS, FIRST_ORDERS, ITEMS, LINES, Tables};
use crate::chance::{self, coin};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// Orders of a district that are not delivered at the beginning.
const UNDELIVERED: u32 = 900;
/// A Stock-Level looks at the last twenty orders of a district.
const RECENT_LINES: usize = 20 * LINES as usize;
/// Of a thousand last names each is borne by three customers of a district.
const NAMESAKES: u32 = 3;

/// A district as it stands.
struct District {
    orders: u64,
    /// Customers of the orders not yet delivered, the oldest first.
    undelivered: VecDeque<u32>,
    /// Items of the last orders.
    recent: VecDeque<u32>,
}

/// The database at work.
pub(crate) struct Work {
    tables: Tables,
    rng: ChaCha8Rng,
    districts: Vec<District>,
    /// By district and customer: the number of the last order.
    last_order: Vec<u32>,
    payments: u32,
    /// The constant of the uneven choice of items.
    item_constant: u32,
}

/// The cache and what it asks of the disk, for the time of a transaction.
struct Pages<'a> {
    cache: &'a mut Cache,
    due: &'a mut VecDeque<Access>,
}

impl Pages<'_> {
    fn read(&mut self, page: u32) {
        self.cache.touch(page, Touch::Read, self.due);
    }

    fn modify(&mut self, page: u32) {
        self.cache.touch(page, Touch::Modify, self.due);
    }

    fn append(&mut self, page: u32, is_new: bool) {
        self.cache.touch(page, if is_new { Touch::Create } else { Touch::Modify }, self.due);
    }
}

impl Work {
    pub(crate) fn new(tables: Tables, seed: u64) -> Self {
        let mut rng = chance::stream(seed, "transactions");
        let item_constant = rng.random_range(0..8192);
        let mut district = |_| District {
            orders: u64::from(FIRST_ORDERS),
            undelivered: (0..UNDELIVERED).map(|_| rng.random_range(0..CUSTOMERS)).collect(),
            recent: (0..RECENT_LINES).map(|_| uneven(&mut rng, 8191, ITEMS, item_constant)).collect(),
        };
        let districts: Vec<District> = (0..tables.districts()).map(&mut district).collect();
        let customers = tables.districts() * CUSTOMERS;
        let last_order = (0..customers).map(|_| rng.random_range(0..FIRST_ORDERS)).collect();
        Self { tables, rng, districts, last_order, payments: 0, item_constant }
    }

    /// Runs one transaction of the mix.
    pub(crate) fn transaction(&mut self, cache: &mut Cache, due: &mut VecDeque<Access>) {
        let mut pages = Pages { cache, due };
        let warehouse = self.rng.random_range(0..self.tables.warehouses());
        let district = warehouse * DISTRICTS + self.rng.random_range(0..DISTRICTS);
        match self.rng.random_range(0..23) {
            0..10 => self.new_order(&mut pages, warehouse, district),
            10..20 => self.payment(&mut pages, warehouse, district),
            20 => self.order_status(&mut pages, district),
            21 => (0..DISTRICTS).for_each(|number| self.deliver(&mut pages, warehouse * DISTRICTS + number)),
            _ => self.stock_level(&mut pages, warehouse, district),
        }
    }

    fn new_order(&mut self, pages: &mut Pages<'_>, warehouse: u32, district: u32) {
        pages.read(self.tables.warehouse.page(warehouse));
        pages.modify(self.tables.district.page(district));
        let customer = self.customer();
        self.find_customer(pages, district, customer);
        pages.read(self.customer_row(district, customer));
        for _ in 0..self.rng.random_range(LINES / 2..=LINES + LINES / 2) {
            let item = uneven(&mut self.rng, 8191, ITEMS, self.item_constant);
            pages.read(self.tables.item.page(item));
            let remote = coin(&mut self.rng, 0.01);
            let supplier = if remote { self.rng.random_range(0..self.tables.warehouses()) } else { warehouse };
            let row = self.stock_row(supplier, item);
            pages.read(self.tables.stock.above(row));
            pages.modify(self.tables.stock.page(row));
            let recent = &mut self.districts[district as usize].recent;
            recent.pop_front();
            recent.push_back(item);
        }
        let order = self.districts[district as usize].orders;
        self.districts[district as usize].orders += 1;
        self.districts[district as usize].undelivered.push_back(customer);
        self.last_order[(district * CUSTOMERS + customer) as usize] = order as u32;
        let count = self.tables.districts();
        let (page, is_new) = self.tables.order.page_of_district(district, count, order);
        pages.append(page, is_new);
        pages.modify(self.tables.order_index_leaf(district, customer));
        let (page, is_new) = self.tables.new_order.page_of_district(district, count, order);
        pages.append(page, is_new);
        for line in lines(order) {
            let (page, is_new) = self.tables.order_line.page_of_district(district, count, line);
            pages.append(page, is_new);
        }
    }

    fn payment(&mut self, pages: &mut Pages<'_>, warehouse: u32, district: u32) {
        pages.modify(self.tables.warehouse.page(warehouse));
        pages.modify(self.tables.district.page(district));
        let remote = coin(&mut self.rng, 0.15);
        let home = if remote { self.rng.random_range(0..self.tables.districts()) } else { district };
        let page = self.look_up_customer(pages, home).1;
        pages.modify(page);
        pages.append(self.tables.history.page(self.payments), self.tables.history.is_first(self.payments));
        self.payments = self.payments.wrapping_add(1);
    }

    fn order_status(&mut self, pages: &mut Pages<'_>, district: u32) {
        let (customer, page) = self.look_up_customer(pages, district);
        pages.read(page);
        pages.read(self.tables.order_index_leaf(district, customer));
        let order = u64::from(self.last_order[(district * CUSTOMERS + customer) as usize]);
        pages.read(self.tables.order.page_of_district(district, self.tables.districts(), order).0);
        lines(order).for_each(|line| pages.read(self.line_page(district, line)));
    }

    fn deliver(&mut self, pages: &mut Pages<'_>, district: u32) {
        let state = &mut self.districts[district as usize];
        let order = state.orders - state.undelivered.len() as u64;
        let Some(customer) = state.undelivered.pop_front() else {
            return;
        };
        let count = self.tables.districts();
        pages.modify(self.tables.new_order.page_of_district(district, count, order).0);
        pages.modify(self.tables.order.page_of_district(district, count, order).0);
        lines(order).for_each(|line| pages.modify(self.line_page(district, line)));
        self.find_customer(pages, district, customer);
        pages.modify(self.customer_row(district, customer));
    }

    fn stock_level(&mut self, pages: &mut Pages<'_>, warehouse: u32, district: u32) {
        pages.read(self.tables.district.page(district));
        let orders = self.districts[district as usize].orders;
        for order in orders - 20..orders {
            lines(order).for_each(|line| pages.read(self.line_page(district, line)));
        }
        for item in &self.districts[district as usize].recent {
            let row = self.stock_row(warehouse, *item);
            pages.read(self.tables.stock.above(row));
            pages.read(self.tables.stock.page(row));
        }
    }

    /// A customer by number or, three times in five, by last name; returns who it is and the page of the row.
    fn look_up_customer(&mut self, pages: &mut Pages<'_>, district: u32) -> (u32, u32) {
        if !coin(&mut self.rng, 0.6) {
            let customer = self.customer();
            self.find_customer(pages, district, customer);
            return (customer, self.customer_row(district, customer));
        }
        let name = uneven(&mut self.rng, 255, CUSTOMERS / NAMESAKES, 123);
        let first = district * CUSTOMERS + scattered(name, CUSTOMERS / NAMESAKES) * NAMESAKES;
        pages.read(self.tables.customer.above(first));
        (first..first + NAMESAKES).for_each(|row| pages.read(self.tables.customer.page(row)));
        // The one in the middle is meant. Her number: any one customer's will do, as long as it is always the same.
        (name * NAMESAKES + 1, self.tables.customer.page(first + NAMESAKES / 2))
    }

    /// Looks a customer's number up in the index by number, which points to the row.
    fn find_customer(&self, pages: &mut Pages<'_>, district: u32, customer: u32) {
        pages.read(self.tables.customer_index.page(district * CUSTOMERS + customer));
    }

    /// The page of a customer's row: rows are in order of the last names, which numbers say nothing about.
    fn customer_row(&self, district: u32, customer: u32) -> u32 {
        self.tables.customer.page(district * CUSTOMERS + scattered(customer, CUSTOMERS))
    }

    /// Rows are in order of the items, one of each warehouse.
    fn stock_row(&self, warehouse: u32, item: u32) -> u32 {
        item * self.tables.warehouses() + warehouse
    }

    fn line_page(&self, district: u32, line: u64) -> u32 {
        self.tables.order_line.page_of_district(district, self.tables.districts(), line).0
    }

    fn customer(&mut self) -> u32 {
        uneven(&mut self.rng, 1023, CUSTOMERS, 259)
    }
}

/// The numbers of an order's lines, in its district.
fn lines(order: u64) -> impl Iterator<Item = u64> {
    (0..u64::from(LINES)).map(move |line| order * u64::from(LINES) + line)
}

/// TPC-C's uneven choice (`NURand`) from `0..count`; `bits` is a power of two less one.
fn uneven(rng: &mut ChaCha8Rng, bits: u32, count: u32, constant: u32) -> u32 {
    ((rng.random_range(0..=bits) | rng.random_range(0..count)) + constant) % count
}

/// Another number below `count` (1000 or 3000), a different one for each: neighbours become strangers.
fn scattered(number: u32, count: u32) -> u32 {
    number * 617 % count
}
