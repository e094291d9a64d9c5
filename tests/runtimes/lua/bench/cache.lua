-- SPDX-License-Identifier: GPL-2.0-or-later
-- A cache of records that replaces the least recently used.  Arguments: records, accesses.
local size = tonumber(arg and arg[1]) or 300
local accesses = tonumber(arg and arg[2]) or 20000

local index, head, count = {}, {}, 0
head.newer, head.older = head, head

local function unlink(r)
  r.newer.older, r.older.newer = r.older, r.newer
end

local function link(r)
  r.older, r.newer = head.older, head
  head.older.newer, head.older = r, r
end

local seed, hits = 1, 0
for i = 1, accesses do
  seed = (seed * 1103515245 + 12345) % 2147483648
  -- Small keys are asked for more often.
  local key = (seed // 7 % (2 * size)) * (seed // 65536 % (2 * size)) // (2 * size)
  local r = index[key]
  if r then
    hits = hits + 1
    r.value[i % 4 + 1] = {i, "v" .. i % 100}
    unlink(r)
  else
    r = {key = key, value = {{i}, {i}, {i}, {i}}}
    index[key] = r
    count = count + 1
    if count > size then
      local old = head.newer
      unlink(old)
      index[old.key] = nil
      count = count - 1
    end
  end
  link(r)
end

local sum = 0
for _, r in pairs(index) do for _, v in ipairs(r.value) do sum = sum + v[1] end end
print(hits, count, sum)
