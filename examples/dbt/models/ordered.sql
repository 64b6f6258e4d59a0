-- How many of each item are on order, and when that last changed.
select
    item,
    sum(quantity) as quantity,
    make_timestamp_ns(max(_ts_ns)) as last_change
from {{ source('shop', 'orders') }}
group by item
