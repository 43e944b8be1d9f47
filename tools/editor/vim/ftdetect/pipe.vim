" Names the type of `.pipe` files.
autocmd BufRead,BufNewFile *.pipe setfiletype pipe
