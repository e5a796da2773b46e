-- The five transactions, each a function of the number of warehouses, which picks its own warehouse, district and
-- customer as TPC-C's terminals do.

create function new_order(warehouses int) returns void language plpgsql as $$
declare
    w smallint := 1 + floor(random() * warehouses);
    d smallint := 1 + floor(random() * 10);
    c int := uneven(1023, 3000, 259);
    items int[];
    supply smallint;
    price int;
    o int;
    lines smallint := 0;
begin
    -- In order, or two orders might wait for each other.
    select array_agg(i order by i) into items
        from (select distinct uneven(8191, 100000, 7911) as i
              from generate_series(1, 5 + floor(random() * 11)::int)) as chosen;
    perform w_tax from warehouse where w_id = w;
    update district set d_next_o_id = d_next_o_id + 1 where d_w_id = w and d_id = d returning d_next_o_id - 1 into o;
    perform c_balance from customer where c_w_id = w and c_d_id = d and c_id = c;
    insert into orders values (w, d, o, c, null, cardinality(items));
    insert into new_order values (w, d, o);
    for n in 1 .. cardinality(items) loop
        supply := case when random() < 0.01 then 1 + floor(random() * warehouses) else w end;
        select i_price into price from item where i_id = items[n];
        update stock set s_quantity = case when s_quantity > 14 then s_quantity - 5 else s_quantity + 86 end,
                         s_sold = s_sold + 5, s_orders = s_orders + 1
            where s_i_id = items[n] and s_w_id = supply;
        insert into order_line values (w, d, o, n, supply, items[n], null, 5, 5 * price, 'distribution-information');
    end loop;
end $$;

create function payment(warehouses int) returns void language plpgsql as $$
declare
    w smallint := 1 + floor(random() * warehouses);
    d smallint := 1 + floor(random() * 10);
    away boolean := random() < 0.15;
    cw smallint := case when away then 1 + floor(random() * warehouses) else w end;
    cd smallint := case when away then 1 + floor(random() * 10) else d end;
    c int := find_customer(cw, cd);
    amount int := 100 + floor(random() * 499900);
begin
    update warehouse set w_ytd = w_ytd + amount where w_id = w;
    update district set d_ytd = d_ytd + amount where d_w_id = w and d_id = d;
    update customer set c_balance = c_balance - amount, c_payments = c_payments + 1
        where c_w_id = cw and c_d_id = cd and c_id = c;
    insert into history values (cw, cd, c, now(), amount, 'historyxxxxxxxxx');
end $$;

create function order_status(warehouses int) returns void language plpgsql as $$
declare
    w smallint := 1 + floor(random() * warehouses);
    d smallint := 1 + floor(random() * 10);
    c int := find_customer(w, d);
    o int;
begin
    select o_id into o from orders
        where o_c_id = c and o_d_id = d and o_w_id = w order by o_c_id desc, o_d_id desc, o_w_id desc, o_id desc limit 1;
    perform ol_amount from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o;
end $$;

create function delivery(warehouses int) returns void language plpgsql as $$
declare
    w smallint := 1 + floor(random() * warehouses);
    o int;
    c int;
    total bigint;
begin
    for d in 1 .. 10 loop
        delete from new_order where ctid = (
            select ctid from new_order where no_w_id = w and no_d_id = d order by no_o_id limit 1 for update skip locked)
            returning no_o_id into o;
        continue when o is null;
        update orders set o_carrier = 5 where o_w_id = w and o_d_id = d and o_id = o returning o_c_id into c;
        with delivered as (
            update order_line set ol_delivered = now() where ol_w_id = w and ol_d_id = d and ol_o_id = o
            returning ol_amount)
            select sum(ol_amount) into total from delivered;
        update customer set c_balance = c_balance + coalesce(total, 0), c_deliveries = c_deliveries + 1
            where c_w_id = w and c_d_id = d and c_id = c;
    end loop;
end $$;

create function stock_level(warehouses int) returns void language plpgsql as $$
declare
    w smallint := 1 + floor(random() * warehouses);
    d smallint := 1 + floor(random() * 10);
    next int;
begin
    select d_next_o_id into next from district where d_w_id = w and d_id = d;
    perform count(*) from (
        select distinct ol_i_id from order_line
        where ol_w_id = w and ol_d_id = d and ol_o_id >= next - 20 and ol_o_id < next) as recent
        join stock on s_i_id = ol_i_id and s_w_id = w where s_quantity < 15;
end $$;

-- By last name three times in five: the one in the middle of those who bear it.
create function find_customer(w smallint, d smallint) returns int language plpgsql as $$
declare
    wanted char(10) := last_name(uneven(255, 1000, 123));
    c int := uneven(1023, 3000, 259);
begin
    if random() < 0.6 then
        select id into c from (
            select c_id as id, c_balance, count(*) over () as bearers, row_number() over (order by c_id) as place
            from customer where c_w_id = w and c_d_id = d and c_last = wanted) as named
            where place = (bearers + 1) / 2;
    else
        perform c_balance from customer where c_w_id = w and c_d_id = d and c_id = c;
    end if;
    return c;
end $$;
