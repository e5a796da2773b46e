-- The tables of a TPC-C-like database, with the row lengths of Mogi and Kitsuregawa's Table 1, filled.
-- psql variables: warehouses; orders, by district. Rows lie in the order of their table's clustered index, where the
-- paper's have one. Room in a page for a second version of a row or two lets an update stay in its page.

-- An uneven choice as TPC-C's NURand, from 1 to most.
create function uneven(bits int, most int, shift int) returns int language sql volatile as $$
    select ((floor(random() * (bits + 1))::int | (1 + floor(random() * most)::int)) + shift) % most + 1
$$;

-- The last name of a customer of this number: a thousand of them, whose order says nothing of the numbers.
create function last_name(number int) returns char(10) language sql immutable as $$
    select (to_char(number * 617 % 1000, 'FM000') || 'BARPRES')::char(10)
$$;

create table warehouse with (fillfactor = 10) as
    select w::smallint as w_id, 0::bigint as w_ytd, 10 as w_tax, rpad('warehouse', 78, 'x') as w_data
    from generate_series(1, :warehouses) w;

create table district with (fillfactor = 10) as
    select w::smallint as d_w_id, d::smallint as d_id, :orders + 1 as d_next_o_id, 0::bigint as d_ytd, 10 as d_tax,
           rpad('district', 77, 'x') as d_data
    from generate_series(1, :warehouses) w, generate_series(1, 10) d;

create table customer with (fillfactor = 80) as
    select w::smallint as c_w_id, d::smallint as c_d_id, c as c_id, last_name(c) as c_last, -10::bigint as c_balance,
           1 as c_payments, 0 as c_deliveries, rpad('customer', 620, 'x') as c_data
    from generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c
    order by 1, 2, 4, 3;

create table item as
    select i as i_id, (100 + random() * 9900)::int as i_price, rpad('item', 77, 'x') as i_data
    from generate_series(1, 100000) i;

create table stock with (fillfactor = 90) as
    select i as s_i_id, w::smallint as s_w_id, 50 as s_quantity, 0 as s_sold, 0 as s_orders,
           rpad('stock', 290, 'x') as s_data
    from generate_series(1, 100000) i, generate_series(1, :warehouses) w;

create table orders with (fillfactor = 90) as
    select w::smallint as o_w_id, d::smallint as o_d_id, o as o_id, 1 + floor(random() * 3000)::int as o_c_id,
           case when o <= :orders - 900 then 1::smallint end as o_carrier, 10::smallint as o_lines
    from generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, :orders) o;

create table order_line with (fillfactor = 80) as
    select w::smallint as ol_w_id, d::smallint as ol_d_id, o as ol_o_id, l::smallint as ol_number,
           w::smallint as ol_supply_w_id, 1 + floor(random() * 100000)::int as ol_i_id,
           case when o <= :orders - 900 then now() end as ol_delivered, 5::smallint as ol_quantity, 100 as ol_amount,
           'distribution-information' as ol_data
    from generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, :orders) o,
         generate_series(1, 10) l;

create table new_order with (fillfactor = 90) as
    select w::smallint as no_w_id, d::smallint as no_d_id, o as no_o_id
    from generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(:orders - 899, :orders) o;

create table history as
    select c_w_id as h_w_id, c_d_id as h_d_id, c_id as h_c_id, now() as h_at, 1000 as h_amount,
           rpad('history', 16, 'x') as h_data
    from generate_series(1, :orders / 3000) copies, customer;

alter table warehouse add primary key (w_id);
alter table district add primary key (d_w_id, d_id);
alter table customer add primary key (c_w_id, c_d_id, c_id);
create index customer_by_name on customer (c_w_id, c_d_id, c_last);
alter table item add primary key (i_id);
alter table stock add primary key (s_i_id, s_w_id);
alter table orders add primary key (o_w_id, o_d_id, o_id);
create index orders_by_customer on orders (o_c_id, o_d_id, o_w_id, o_id);
alter table order_line add primary key (ol_w_id, ol_d_id, ol_o_id, ol_number);
alter table new_order add primary key (no_w_id, no_d_id, no_o_id);
