-- SPDX-License-Identifier: GPL-2.0-or-later
-- Tables that grow, shrink and are traversed while cycles run.
local seed = 42
local function random(n)
  seed = (seed * 1103515245 + 12345) % 2147483648
  return seed // 65536 % n
end

local t, model, sum = {}, 0, 0
for round = 1, 40000 do
  local k = random(500)
  local key = k % 3 == 0 and k or k % 3 == 1 and "k" .. k or k + 0.5
  if t[key] then
    model = model - #t[key]
    t[key] = nil
  else
    t[key] = {k, {round}, "v" .. k}
    model = model + 3
  end
end
for _, v in pairs(t) do sum = sum + #v end
print(sum == model, sum)

-- array part: push, pop, insert, remove, sort, unpack
local a = {}
for i = 1, 5000 do a[#a + 1] = {random(100000), i} end
table.sort(a, function(x, y) return x[1] < y[1] or x[1] == y[1] and x[2] < y[2] end)
for i = 2, #a do assert(a[i - 1][1] <= a[i][1]) end
for _ = 1, 1000 do table.insert(a, random(#a) + 1, {random(1000), 0}) end
for _ = 1, 3000 do table.remove(a, random(#a) + 1) end
print(#a, select("#", table.unpack(a, 1, 200)))

-- erasing while traversing
local n = 0
for k in pairs(t) do t[k] = nil n = n + 1 end
print(n, next(t))

-- objects as keys, erased and collected
local keys = {}
for round = 1, 200 do
  local mine = {}
  for i = 1, 50 do mine[i] = {} keys[mine[i]] = {i} end
  for i = 1, 50 do assert(keys[mine[i]][1] == i) keys[mine[i]] = nil end
end
collectgarbage()
print(next(keys))

-- metatables
local mt = {__index = function(_, k) return {k} end, __newindex = function(u, k, v) rawset(u, k, {v}) end,
            __len = function() return 7 end, __eq = function() return true end,
            __concat = function(x, y) return "c" end, __call = function(_, ...) return select("#", ...) end}
local u, v = setmetatable({}, mt), setmetatable({}, mt)
u.x = 1
print(u.x[1], u.y[1], #u, u == v, u .. 1, u(1, 2, 3))
print(#string.format("%s", u) > 6, getmetatable(u) == mt)
